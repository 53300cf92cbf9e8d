// Looking keys up in their home buckets: the entries of a bucket are compared at once, and no branch depends on a key.

// Bit i: entry i is this key.
SFCTR_INLINE unsigned match(const Bucket* bucket, std::uint64_t key) {
#if defined(__AVX512F__)
  const __m512i line = _mm512_load_si512(bucket), wanted = _mm512_set1_epi64(static_cast<long long>(key));
  const unsigned equal = _mm512_mask_cmpeq_epi64_mask((1u << kBucketEntries) - 1, line, wanted);
#else
  unsigned equal = 0;
  for (unsigned i = 0; i < kBucketEntries; ++i) equal |= static_cast<unsigned>(bucket->keys[i] == key) << i;
#endif
  return equal & bucket->used;
}

std::size_t probe(const ProbeArgs& a) {
  std::size_t num_late = 0;
  for (std::size_t i = 0; i < a.num_keys; ++i) {
    const Bucket* const home = a.homes[i];
    const unsigned found = match(home, a.keys[i]);
    const std::uint32_t is_absent = found == 0;
    a.slots[i] = home->slots[__builtin_ctz(found | is_absent)] | -is_absent;
    a.late[num_late] = static_cast<std::uint32_t>(i);
    const std::uint32_t is_late = is_absent & (home->passed != 0);
    num_late += is_late;
    __builtin_prefetch(home + is_late);
  }
  return num_late;
}
