// One build that runs well on every x86-64: DT_CLONES compiles a function three times and the
// loader picks by CPU. Sanitizer builds get the plain form (their runtime is not up when the choice
// is made).
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__) ||       \
    defined(__clang__)
#define DT_CLONES
#else
#define DT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
