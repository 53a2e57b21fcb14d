#include "kernels/isa_cpu.h"

#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const struct {
    const char *word, *name; // in DTRAIN_MAX_ISA; for messages
} isas[DT_ISA_COUNT] = {{"plain", "plain x86-64"},
                        {"avx2", "avx2"},
                        {"avx512", "avx512"},
                        {"avx512_bf16", "avx512 bf16"},
                        {"amx_bf16", "amx bf16"}};

static enum dt_cpu_isa highest = DT_ISA_PLAIN;

#ifdef __x86_64__
// Whether the CPU has AMX for bf16 and Linux lets this process use its tile registers, which have
// to be asked for (Documentation/arch/x86/xstate.rst).
static bool has_amx(void)
{
    enum { TILES = 1 << 24, BF16 = 1 << 22, ASK = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d = 0;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    return (d & TILES) && (d & BF16) && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}
#endif

static enum dt_cpu_isa of_machine(void)
{
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return DT_ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return DT_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return DT_ISA_AVX512;
    return has_amx() ? DT_ISA_AMX_BF16 : DT_ISA_AVX512_BF16;
#else
    return DT_ISA_PLAIN;
#endif
}

dt_status dt_cpu_isa_open(void)
{
    const char *most = getenv("DTRAIN_MAX_ISA");
    int i = DT_ISA_COUNT - 1;
    while (most && i >= 0 && strcmp(most, isas[i].word) != 0)
        i--;
    if (i < 0)
        return DT_FAIL(DT_USER, "use plain, avx2, avx512, avx512_bf16 or amx_bf16, or unset it",
                       "the environment variable DTRAIN_MAX_ISA is \"%s\"", most);
    highest = of_machine() < (enum dt_cpu_isa)i ? of_machine() : (enum dt_cpu_isa)i;
    return DT_OK;
}

enum dt_cpu_isa dt_cpu_isa(void)
{
    return highest;
}

const char *dt_cpu_isa_name(void)
{
    return isas[highest].name;
}
