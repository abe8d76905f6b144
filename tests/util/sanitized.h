/* tests/util/sanitized.h - whether a sanitizer watches, which has memory of its own and makes
 * arithmetic 20 times slower: long tests take a part of their data there. */
#ifndef CB_TESTS_UTIL_SANITIZED_H
#define CB_TESTS_UTIL_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif

#endif
