// A test program is a main() of CHECKs: it says what failed, and where, and ends with status 1.
#pragma once

#include <cstdio>
#include <cstdlib>

// Whether each memory access is watched, which makes a test ten times as long: it then does a part of its work.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

#define CHECK_THROWS(type, expression)                                                              \
  do {                                                                                              \
    bool thrown = false;                                                                            \
    try {                                                                                           \
      static_cast<void>(expression);                                                                \
    } catch (const type&) {                                                                         \
      thrown = true;                                                                                \
    }                                                                                               \
    if (!thrown) {                                                                                  \
      std::fprintf(stderr, "%s:%d: %s did not throw %s\n", __FILE__, __LINE__, #expression, #type); \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (false)
