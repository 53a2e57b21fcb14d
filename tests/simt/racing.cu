// See racing.h.
#include "racing.h"

#include "kernels/device.cuh"

enum { BLOCK = 128 };

// Memory that all launches may write.
alignas(16) static float memory[2 * BLOCK];
alignas(16) static const float source[2 * BLOCK] = {};
static int64_t wide[2][9];

// ---- shared memory between warps

__global__ static void read_behind_write(bool ordered, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    tile[threadIdx.x] = (float)threadIdx.x;
    if (ordered)
        __syncthreads();
    out[threadIdx.x] = tile[BLOCK - 1 - threadIdx.x];
}

__global__ static void write_behind_read(bool ordered, float *out)
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

// Two threads write the same value.
__global__ static void write_twice_the_same(bool ordered)
{
    DT_SHARED(int, flag, [1]);
    if (threadIdx.x == 0)
        *flag = 1;
    if (ordered)
        __syncthreads();
    if (threadIdx.x == BLOCK - 1)
        *flag = 1;
}

// The second iteration of the loop writes what others still read.
__global__ static void second_round(bool ordered, float *out)
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

__global__ static void dynamic_shared(bool ordered, float *out)
{
    DT_SHARED_DYN(float, rows);
    rows[threadIdx.x] = 1.0f;
    if (ordered)
        __syncthreads();
    if (threadIdx.x == 0)
        *out = rows[BLOCK - 1];
}

// One thread writes 4 bytes of 16 that another reads.
__global__ static void half_of_a_vector(bool ordered, float *out)
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

// ---- within a warp

__global__ static void lanes(bool ordered, float *out)
{
    DT_SHARED(float, tile, [DT_WARP]);
    tile[threadIdx.x] = 1.0f;
    if (ordered)
        __syncwarp();
    out[threadIdx.x] = tile[threadIdx.x ^ 1u];
}

// A shuffle by itself orders nothing.
__global__ static void lanes_by_shuffle(bool ordered, float *out)
{
    DT_SHARED(float, tile, [DT_WARP]);
    tile[threadIdx.x] = 1.0f;
    float sum = dt_warp_sum(1.0f);
    if (ordered)
        __syncwarp();
    out[threadIdx.x] = sum + tile[threadIdx.x ^ 1u];
}

// Without order, the mask misses lane 9, which reads.
__global__ static void lanes_of_a_mask(unsigned mask, float *out)
{
    DT_SHARED(float, tile, [DT_WARP]);
    tile[threadIdx.x] = 1.0f;
    if (mask >> threadIdx.x & 1u)
        __syncwarp(mask);
    if (threadIdx.x == 9)
        *out = tile[3];
}

// Lane 0 comes before 1, and 1 before 2, by masks of two lanes.
__global__ static void lanes_in_a_chain(bool ordered, float *out)
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

// ---- global memory

__global__ static void threads_of_a_block(bool ordered, float *x)
{
    x[threadIdx.x] = 1.0f;
    if (ordered)
        __syncthreads();
    x[BLOCK + threadIdx.x] = x[threadIdx.x ^ 32u];
}

__global__ static void word_kernel(float *x)
{
    if (threadIdx.x == 5)
        *x = 1.0f;
}

// With order there are two launches.
static dt_status two_blocks(bool ordered)
{
    for (int i = 0; i < (ordered ? 2 : 1); i++)
        DT_LAUNCH((word_kernel), ordered ? 1 : 2, BLOCK, 0, nullptr, memory);
    return DT_LAUNCHED("word");
}

__global__ static void block_reads_another(int64_t shift, const float *x, float *y)
{
    __syncthreads();
    y[dt_thread_index()] = x[(dt_thread_index() + shift) % (2 * BLOCK)];
}

struct nine {
    int64_t x[9];
};

// Assigns a struct of 72 bytes.
__global__ static void whole_struct(bool ordered, const nine *from, nine *to)
{
    if (threadIdx.x == 0)
        *to = *from;
    if (ordered)
        __syncthreads();
    if (threadIdx.x == 64)
        to->x[8] = 1;
}

// ---- asynchronous copies

// The thread that copies reads too early.
__global__ static void copy_read_early(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    tile[threadIdx.x] = 0.0f;
    dt_copy_async<4>(tile + threadIdx.x, in + threadIdx.x);
    dt_copy_commit();
    if (ordered)
        dt_copy_wait<0>();
    out[threadIdx.x] = tile[threadIdx.x];
}

// All threads wait for their copies; without order the barrier is missing.
__global__ static void copy_read_by_others(bool ordered, const float *in, float *out)
{
    DT_SHARED(float, tile, [BLOCK]);
    dt_copy_async<4>(tile + threadIdx.x, in + threadIdx.x);
    dt_copy_commit();
    dt_copy_wait<0>();
    if (ordered)
        __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 64u];
}

// Copies to memory that others still read.
__global__ static void copy_over_readers(bool ordered, const float *in, float *out)
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

// One thread copies. A barrier helps only if that thread waits for the copy before it.
__global__ static void copy_waited_by_another(bool ordered, const float *in, float *out)
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

// All threads copy from a place that is written before the copies have read it.
__global__ static void copy_of_written(bool ordered, float *x)
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

// The thread reads copies of two groups. Without order it waits only for the older group.
__global__ static void newer_copy_read(bool ordered, const float *in, float *out)
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

// ---- no races

__global__ static void neighbouring_bytes(uint8_t *bytes, uint16_t *shorts)
{
    DT_SHARED(uint8_t, tile, [BLOCK]);
    tile[threadIdx.x] = 1;
    bytes[dt_thread_index()] = tile[threadIdx.x];
    shorts[dt_thread_index()] = 2;
}

__global__ static void all_read(const float *in, float *out)
{
    DT_SHARED(float, x, [1]);
    if (threadIdx.x == 77)
        *x = in[3];
    __syncthreads();
    out[dt_thread_index()] = *x + in[3];
}

__attribute__((noinline)) static void raise(float *all, int n)
{
    for (int i = 0; i < n; i++)
        all[i] += (float)i;
}

__global__ static void own_locals(float *out)
{
    float own[9] = {};
    raise(own, 9);
    __syncwarp();
    raise(own, 9);
    out[dt_thread_index()] = own[8];
}

__global__ static void again_kernel(float *x)
{
    for (int i = 0; i < 3; i++) {
        x[dt_thread_index()] += 1.0f;
        __syncwarp();
        x[dt_thread_index()] += 1.0f;
        __syncthreads();
    }
}

static dt_status own_again(bool)
{
    for (int i = 0; i < 2; i++)
        DT_LAUNCH((again_kernel), 2, BLOCK, 0, nullptr, memory);
    return DT_LAUNCHED("again");
}

__global__ static void reductions_in_a_row(float *out)
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

// A row launches its kernel with these arguments.
#define ROW(says, kernel, grid, block, shared_bytes, ...)                                          \
    {                                                                                              \
        says, #kernel, []([[maybe_unused]] bool ordered) {                                         \
            DT_LAUNCH((kernel), grid, block, shared_bytes, nullptr, __VA_ARGS__);                  \
            return DT_LAUNCHED(#kernel);                                                           \
        }                                                                                          \
    }

const struct planted_race planted_races[] = {
    ROW("a race for tile + ", read_behind_write, 1, BLOCK, 0, ordered, memory),
    ROW("a race for tile + ", write_behind_read, 1, BLOCK, 0, ordered, memory),
    ROW("a race for flag + 0: thread (", write_twice_the_same, 1, BLOCK, 0, ordered),
    ROW("a race for tile + ", second_round, 1, BLOCK, 0, ordered, memory),
    ROW("a race for dynamic shared memory + 508", dynamic_shared, 1, BLOCK, BLOCK * sizeof(float),
        ordered, memory),
    ROW("a race for tile + 12", half_of_a_vector, 1, BLOCK, 0, ordered, memory),
    ROW("a race for tile + ", lanes, 1, DT_WARP, 0, ordered, memory),
    ROW("a race for tile + ", lanes_by_shuffle, 1, DT_WARP, 0, ordered, memory),
    ROW("a race for tile + 12", lanes_of_a_mask, 1, DT_WARP, 0, ordered ? 0xffffu : 0xffu, memory),
    ROW("a race for x + 0", lanes_in_a_chain, 1, DT_WARP, 0, ordered, memory),
    ROW("a race for global memory at", threads_of_a_block, 1, BLOCK, 0, ordered, memory),
    {"a race for global memory at", "two_blocks", two_blocks},
    ROW("a race for global memory at", block_reads_another, 2, BLOCK, 0, ordered ? 0 : BLOCK,
        memory, memory),
    ROW("a race for global memory at", whole_struct, 1, BLOCK, 0, ordered, (const nine *)wide[0],
        (nine *)wide[1]),
    ROW("writes by a copy not waited for at kernels/device.cuh:", copy_read_early, 1, BLOCK, 0,
        ordered, source, memory),
    ROW("a race for tile + ", copy_read_by_others, 1, BLOCK, 0, ordered, source, memory),
    ROW("writes by a copy not waited for", copy_over_readers, 1, BLOCK, 0, ordered, source, memory),
    ROW("writes by a copy not waited for", copy_waited_by_another, 1, BLOCK, 0, ordered, source,
        memory),
    ROW("reads by a copy not waited for", copy_of_written, 1, BLOCK, 0, ordered, memory),
    ROW("a race for pairs + ", newer_copy_read, 1, BLOCK, 0, ordered, source, memory),
    ROW(nullptr, neighbouring_bytes, 2, BLOCK, 0, (uint8_t *)memory, (uint16_t *)(memory + BLOCK)),
    ROW(nullptr, all_read, 2, BLOCK, 0, source, memory),
    ROW(nullptr, own_locals, 2, BLOCK, 0, memory),
    {nullptr, "own_again", own_again},
    ROW(nullptr, reductions_in_a_row, 1, BLOCK, 0, memory),
    {nullptr, nullptr, nullptr},
};

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
