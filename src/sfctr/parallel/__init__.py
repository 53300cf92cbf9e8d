"""Makes several processes train one model: who they are, what they say to each other, and the dense part on all."""
