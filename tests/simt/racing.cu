// See racing.h.
#include "racing.h"

#include "kernels/device.cuh"

#define LAUNCHER(launcher, kernel, grid, block, shared_bytes, ...)                                 \
    dt_status launcher                                                                             \
    {                                                                                              \
        DT_LAUNCH((kernel), grid, block, shared_bytes, nullptr, __VA_ARGS__);                      \
        return DT_LAUNCHED(#kernel);                                                               \
    }

enum { BLOCK = 128 };

// Memory that kernels write; every launch may.
alignas(16) static float memory[2 * BLOCK];
alignas(16) static const float source[2 * BLOCK] = {};
static int64_t wide[2][9];

// ---- shared memory between warps

__global__ static void read_kernel(bool ordered, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    tile[threadIdx.x] = (float)threadIdx.x;
    if (ordered)
        __syncthreads();
    out[threadIdx.x] = tile[BLOCK - 1 - threadIdx.x];
}

LAUNCHER(read_behind_write(bool ordered), read_kernel, 1, BLOCK, 0, ordered, memory)

__global__ static void write_kernel(bool ordered, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    tile[threadIdx.x] = 0.0f;
    __syncthreads();
    float x = tile[BLOCK - 1 - threadIdx.x];
    if (ordered)
        __syncthreads();
    tile[threadIdx.x] = x;
    out[threadIdx.x] = tile[threadIdx.x];
}

LAUNCHER(write_behind_read(bool ordered), write_kernel, 1, BLOCK, 0, ordered, memory)

__global__ static void same_kernel(bool ordered)
{
    DT_SHARED(int, flag, [1]);
    if (threadIdx.x == 0)
        *flag = 1;
    if (ordered)
        __syncthreads();
    if (threadIdx.x == BLOCK - 1)
        *flag = 1;
}

LAUNCHER(write_twice_the_same(bool ordered), same_kernel, 1, BLOCK, 0, ordered)

__global__ static void rounds_kernel(bool ordered, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    float sum = 0.0f;
    for (int i = 0; i < 2; i++) {
        tile[threadIdx.x] = sum + 1.0f;
        __syncthreads();
        sum += tile[threadIdx.x ^ 64u];
        if (ordered)
            __syncthreads();
    }
    out[threadIdx.x] = sum;
}

LAUNCHER(second_round(bool ordered), rounds_kernel, 1, BLOCK, 0, ordered, memory)

__global__ static void dynamic_kernel(bool ordered, float *out)
{
    DT_SHARED_DYN(float, rows);
    rows[threadIdx.x] = 1.0f;
    if (ordered)
        __syncthreads();
    if (threadIdx.x == 0)
        *out = rows[BLOCK - 1];
}

LAUNCHER(dynamic_shared(bool ordered), dynamic_kernel, 1, BLOCK, BLOCK * sizeof(float), ordered,
         memory)

__global__ static void vector_kernel(bool ordered, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    float four[4];
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    dt_load<4>(tile + threadIdx.x / 4 * 4, four);
    if (ordered)
        __syncthreads();
    if (threadIdx.x == 64)
        tile[3] = 2.0f;
    out[threadIdx.x] = four[3];
}

LAUNCHER(half_of_a_vector(bool ordered), vector_kernel, 1, BLOCK, 0, ordered, memory)

// ---- within a warp

__global__ static void lanes_kernel(bool ordered, float *out)
{
    DT_SHARED(float, tile, [DT_WARP]);
    tile[threadIdx.x] = 1.0f;
    if (ordered)
        __syncwarp();
    out[threadIdx.x] = tile[threadIdx.x ^ 1u];
}

LAUNCHER(lanes(bool ordered), lanes_kernel, 1, DT_WARP, 0, ordered, memory)

__global__ static void shuffled_kernel(bool ordered, float *out)
{
    DT_SHARED(float, tile, [DT_WARP]);
    tile[threadIdx.x] = 1.0f;
    float sum = dt_warp_sum(1.0f);
    if (ordered)
        __syncwarp();
    out[threadIdx.x] = sum + tile[threadIdx.x ^ 1u];
}

LAUNCHER(lanes_by_shuffle(bool ordered), shuffled_kernel, 1, DT_WARP, 0, ordered, memory)

__global__ static void mask_kernel(unsigned mask, float *out)
{
    DT_SHARED(float, tile, [DT_WARP]);
    tile[threadIdx.x] = 1.0f;
    if (mask >> threadIdx.x & 1u)
        __syncwarp(mask);
    if (threadIdx.x == 9)
        *out = tile[3];
}

LAUNCHER(lanes_of_a_mask(bool ordered), mask_kernel, 1, DT_WARP, 0, ordered ? 0xffffu : 0xffu,
         memory)

__global__ static void chain_kernel(bool ordered, float *out)
{
    DT_SHARED(float, x, [1]);
    if (threadIdx.x == 0)
        *x = 1.0f;
    if (threadIdx.x < 2)
        __syncwarp(ordered ? 3u : 1u << threadIdx.x);
    if (threadIdx.x == 1 || threadIdx.x == 2)
        __syncwarp(6u);
    if (threadIdx.x == 2)
        *out = *x;
}

LAUNCHER(lanes_in_a_chain(bool ordered), chain_kernel, 1, DT_WARP, 0, ordered, memory)

// ---- global memory

__global__ static void block_kernel(bool ordered, float *x)
{
    x[threadIdx.x] = 1.0f;
    if (ordered)
        __syncthreads();
    x[BLOCK + threadIdx.x] = x[threadIdx.x ^ 32u];
}

LAUNCHER(threads_of_a_block(bool ordered), block_kernel, 1, BLOCK, 0, ordered, memory)

__global__ static void word_kernel(float *x)
{
    if (threadIdx.x == 5)
        *x = 1.0f;
}

dt_status two_blocks(bool ordered)
{
    for (int i = 0; i < (ordered ? 2 : 1); i++)
        DT_LAUNCH((word_kernel), ordered ? 1 : 2, BLOCK, 0, nullptr, memory);
    return DT_LAUNCHED("word");
}

__global__ static void around_kernel(int64_t shift, const float *x, float *y)
{
    __syncthreads();
    y[dt_thread_index()] = x[(dt_thread_index() + shift) % (2 * BLOCK)];
}

LAUNCHER(block_reads_another(bool ordered), around_kernel, 2, BLOCK, 0, ordered ? 0 : BLOCK, memory,
         memory)

struct nine {
    int64_t x[9];
};

__global__ static void struct_kernel(bool ordered, const nine *from, nine *to)
{
    if (threadIdx.x == 0)
        *to = *from;
    if (ordered)
        __syncthreads();
    if (threadIdx.x == 64)
        to->x[8] = 1;
}

LAUNCHER(whole_struct(bool ordered), struct_kernel, 1, BLOCK, 0, ordered, (const nine *)wide[0],
         (nine *)wide[1])

// ---- asynchronous copies

__global__ static void early_kernel(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    tile[threadIdx.x] = 0.0f;
    dt_copy_async<4>(tile + threadIdx.x, in + threadIdx.x);
    dt_copy_commit();
    if (ordered)
        dt_copy_wait<0>();
    out[threadIdx.x] = tile[threadIdx.x];
}

LAUNCHER(copy_read_early(bool ordered), early_kernel, 1, BLOCK, 0, ordered, source, memory)

__global__ static void others_kernel(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    dt_copy_async<4>(tile + threadIdx.x, in + threadIdx.x);
    dt_copy_commit();
    dt_copy_wait<0>();
    if (ordered)
        __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 64u];
}

LAUNCHER(copy_read_by_others(bool ordered), others_kernel, 1, BLOCK, 0, ordered, source, memory)

__global__ static void over_kernel(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 64u];
    if (ordered)
        __syncthreads();
    dt_copy_async<4>(tile + threadIdx.x, in + threadIdx.x);
    dt_copy_commit();
    __syncthreads();
    dt_copy_wait<0>();
}

LAUNCHER(copy_over_readers(bool ordered), over_kernel, 1, BLOCK, 0, ordered, source, memory)

// One thread copies; a barrier helps only where that thread waits before it.
__global__ static void waiter_kernel(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, tile, [4]);
    if (threadIdx.x == 0)
        dt_copy_async<16>(tile, in);
    dt_copy_commit();
    if (threadIdx.x != 0 || ordered)
        dt_copy_wait<0>();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x % 4];
}

LAUNCHER(copy_waited_by_another(bool ordered), waiter_kernel, 1, BLOCK, 0, ordered, source, memory)

__global__ static void written_kernel(bool ordered, float *x)
{
    DT_SHARED(float, tile, [BLOCK]);
    dt_copy_async<4>(tile + threadIdx.x, x);
    dt_copy_commit();
    __syncthreads();
    if (ordered)
        dt_copy_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0)
        *x = 1.0f;
    __syncthreads();
    dt_copy_wait<0>();
}

LAUNCHER(copy_of_written(bool ordered), written_kernel, 1, BLOCK, 0, ordered, memory)

__global__ static void groups_kernel(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, pairs, [BLOCK][2]);
    for (int i = 0; i < 2; i++) {
        dt_copy_async<4>(&pairs[threadIdx.x][i], in + i * BLOCK + threadIdx.x);
        dt_copy_commit();
    }
    dt_copy_wait<1>();
    out[threadIdx.x] = pairs[threadIdx.x][0];
    if (ordered)
        dt_copy_wait<0>();
    out[BLOCK + threadIdx.x] = pairs[threadIdx.x][1];
}

LAUNCHER(newer_copy_read(bool ordered), groups_kernel, 1, BLOCK, 0, ordered, source, memory)

// ---- no races

__global__ static void bytes_kernel(uint8_t *bytes, uint16_t *shorts)
{
    DT_SHARED(uint8_t, tile, [BLOCK]);
    tile[threadIdx.x] = 1;
    bytes[dt_thread_index()] = tile[threadIdx.x];
    shorts[dt_thread_index()] = 2;
}

LAUNCHER(neighbouring_bytes(void), bytes_kernel, 2, BLOCK, 0, (uint8_t *)memory,
         (uint16_t *)(memory + BLOCK))

__global__ static void constant_kernel(const float *in, float *out)
{
    DT_SHARED(float, x, [1]);
    if (threadIdx.x == 77)
        *x = in[3];
    __syncthreads();
    out[dt_thread_index()] = *x + in[3];
}

LAUNCHER(all_read(void), constant_kernel, 2, BLOCK, 0, source, memory)

__attribute__((noinline)) static void raise(float *all, int n)
{
    for (int i = 0; i < n; i++)
        all[i] += (float)i;
}

__global__ static void locals_kernel(float *out)
{
    float own[9] = {};
    raise(own, 9);
    __syncwarp();
    raise(own, 9);
    out[dt_thread_index()] = own[8];
}

LAUNCHER(own_locals(void), locals_kernel, 2, BLOCK, 0, memory)

__global__ static void again_kernel(float *x)
{
    for (int i = 0; i < 3; i++) {
        x[dt_thread_index()] += 1.0f;
        __syncwarp();
        x[dt_thread_index()] += 1.0f;
        __syncthreads();
    }
}

dt_status own_again(void)
{
    for (int i = 0; i < 2; i++)
        DT_LAUNCH((again_kernel), 2, BLOCK, 0, nullptr, memory);
    return DT_LAUNCHED("again");
}

__global__ static void reductions_kernel(float *out)
{
    float x = (float)threadIdx.x;
    for (int i = 0; i < 2; i++) {
        x += dt_block_sum<BLOCK>(x);
        x += dt_block_sum<BLOCK>(x);
        x = fmaxf(x, dt_block_max<BLOCK>(x));
        x = fmaxf(x, dt_block_max<BLOCK>(x));
    }
    out[threadIdx.x] = x;
}

LAUNCHER(reductions_in_a_row(void), reductions_kernel, 1, BLOCK, 0, memory)

// ---- any accesses

template <class T> DT_DEVICE void play_one(bool writes, uint8_t *at)
{
    volatile T *x = reinterpret_cast<T *>(at);
    if (writes)
        *x = T(1);
    else
        (void)*x;
}

DT_DEVICE void play_access_at(const play_access &a, uint8_t *bytes)
{
    if (a.bytes == 1)
        play_one<uint8_t>(a.writes, bytes + a.offset);
    else if (a.bytes == 2)
        play_one<uint16_t>(a.writes, bytes + a.offset);
    else if (a.bytes == 4)
        play_one<uint32_t>(a.writes, bytes + a.offset);
    else
        play_one<uint64_t>(a.writes, bytes + a.offset);
}

__global__ static void play_kernel(const play_access *accesses, int n, const play_end *ends,
                                   int rounds, uint8_t *bytes)
{
    DT_SHARED(uint8_t, tile, [PLAY_BYTES]);
    const int thread = (int)threadIdx.x, block = (int)blockIdx.x;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++)
            if (accesses[i].round == round && accesses[i].thread == thread &&
                accesses[i].block == block)
                play_access_at(accesses[i], accesses[i].shared ? tile : bytes);
        const play_end end = ends[round];
        if (end.warp < 0)
            __syncthreads();
        else if (end.warp == thread / DT_WARP && (end.mask >> thread % DT_WARP & 1u))
            __syncwarp(end.mask);
    }
}

dt_status play(const struct play_access *accesses, int n, const struct play_end *ends, int rounds)
{
    DT_LAUNCH((play_kernel), PLAY_BLOCKS, PLAY_THREADS, 0, nullptr, accesses, n, ends, rounds,
              (uint8_t *)memory);
    return DT_LAUNCHED("play");
}
