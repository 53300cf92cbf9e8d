"""Dense features and pooled embeddings in, logits out, on one device. Plain modules: read them."""
