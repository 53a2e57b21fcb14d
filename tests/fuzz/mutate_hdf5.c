// Makes mutants of HDF5 files. Half of the changes are in a block of metadata, the others anywhere,
// since object headers of the older format have no signature. Blocks of the newer format have a
// checksum that would reveal nearly every change before it has any effect, so three of four mutants
// have their checksums computed again. The undamaged file shows where a block's checksum is: it is
// the number that matches.
#include "mutate_hdf5.h"

#include "base/file.h"
#include "base/list.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1024, NEAR = 128, MOST_CHANGES = 4, COPY = 64 };

static const char signatures[][5] = {"\x89HDF", "OHDR", "OCHK", "FRHP", "FHDB", "FHIB", "BTHD",
                                     "BTLF",    "BTIN", "FAHD", "FADB", "EAHD", "EAIB", "EASB",
                                     "EADB",    "TREE", "SNOD", "HEAP", "GCOL"};

static uint32_t rotate(uint32_t x, int by)
{
    return x << by | x >> (32 - by);
}

// lookup3 [Jenkins 2006], hashlittle with initial value 0.
static uint32_t lookup3(const uint8_t *bytes, int64_t size)
{
    static const int mix[] = {4, 6, 8, 16, 19, 4}, final[] = {14, 11, 25, 16, 4, 14, 24};
    uint32_t s[3] = {0xdeadbeef + (uint32_t)size, 0xdeadbeef + (uint32_t)size,
                     0xdeadbeef + (uint32_t)size};
    for (; size > 0; bytes += 12, size -= 12) {
        uint32_t words[3] = {0};
        memcpy(words, bytes, size < 12 ? (size_t)size : 12);
        for (int i = 0; i < 3; i++)
            s[i] += words[i];
        for (int i = 0; size > 12 && i < 6; i++) {
            uint32_t *x = &s[i % 3], *y = &s[(i + 2) % 3];
            *x = (*x - *y) ^ rotate(*y, mix[i]);
            *y += s[(i + 1) % 3];
        }
    }
    for (int i = 0; i < 7; i++) {
        uint32_t *x = &s[(i + 2) % 3], y = s[(i + 1) % 3];
        *x = (*x ^ y) - rotate(y, final[i]);
    }
    return s[2];
}

// Computes the checksum that the block should have, and tells whether the block has it.
static bool sum_matches(uint8_t *bytes, const struct hdf5_block *block, uint32_t *sum)
{
    uint32_t stored;
    uint8_t *place = bytes + block->sum;
    memcpy(&stored, place, sizeof stored);
    if (block->sum < block->at + block->size)
        memset(place, 0, sizeof stored);
    *sum = lookup3(bytes + block->at, block->size);
    memcpy(place, &stored, sizeof stored);
    return *sum == stored;
}

static void find_sum(struct hdf5_seed *seed, struct hdf5_block *block)
{
    int64_t left = seed->size - block->at;
    uint32_t sum;
    for (block->size = 8; block->size <= BLOCK_BYTES && block->size + 4 <= left; block->size++) {
        block->sum = block->at + block->size;
        if (sum_matches(seed->bytes, block, &sum))
            return;
    }
    // A direct block of a fractal heap: signature, version, address, offset, checksum.
    block->sum = block->at + 17;
    for (block->size = 512; block->size <= left; block->size *= 2)
        if (sum_matches(seed->bytes, block, &sum))
            return;
    block->size = 0;
}

dt_status hdf5_seed_read(const char *folder, const char *name, struct hdf5_seed *seed)
{
    char path[DT_PATH], *text;
    *seed = (struct hdf5_seed){0};
    snprintf(seed->name, sizeof seed->name, "%s", name);
    DT_TRY(dt_path(path, "%s/%s", folder, name));
    DT_TRY(dt_read_file(path, 1 << 20, &text, &seed->size));
    seed->bytes = (uint8_t *)text;
    for (int64_t at = 0; at + 4 <= seed->size; at++) {
        bool found = false;
        for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
            found |= memcmp(seed->bytes + at, signatures[i], 4) == 0;
        if (!found)
            continue;
        DT_TRY(dt_list_grow(&seed->blocks, seed->n_blocks, sizeof *seed->blocks));
        seed->blocks[seed->n_blocks].at = at;
        find_sum(seed, &seed->blocks[seed->n_blocks++]);
    }
    return DT_OK;
}

void hdf5_seed_free(struct hdf5_seed *seed)
{
    free(seed->bytes);
    free(seed->blocks);
}

struct mutant {
    const struct hdf5_seed *seed;
    struct dt_philox rng;
    uint8_t *bytes;
    int64_t size;
};

static int64_t below(struct mutant *m, int64_t n)
{
    return (int64_t)dt_philox_below(&m->rng, (uint64_t)n);
}

static int64_t block_address(struct mutant *m)
{
    return m->seed->n_blocks > 0 ? m->seed->blocks[below(m, m->seed->n_blocks)].at : 0;
}

// Returns `width` bytes to change: near a block, at a number other than zero, or anywhere.
static uint8_t *choose_place(struct mutant *m, int64_t width)
{
    int64_t most = m->size - width, at = below(m, most + 1), kind = below(m, 4);
    if (kind < 2)
        at = block_address(m) + below(m, NEAR);
    while (kind == 2 && at < most && m->bytes[at] == 0)
        at++;
    return m->bytes + (at < most ? at : most);
}

// Returns a number of the kind that makes sizes, counts and addresses wrong.
static uint64_t choose_number(struct mutant *m, uint64_t now)
{
    switch (below(m, 6)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX >> below(m, 64);
    case 2:
        return (uint64_t)1 << below(m, 64);
    case 3:
        return now + (uint64_t)below(m, 9) - 4;
    case 4:
        return (uint64_t)block_address(m);
    default:
        return (uint64_t)(m->size + below(m, 33) - 16);
    }
}

static void put_number(struct mutant *m)
{
    uint64_t value = 0;
    size_t width = (size_t)1 << below(m, 4);
    uint8_t *place = choose_place(m, (int64_t)width);
    memcpy(&value, place, width);
    value = choose_number(m, value);
    memcpy(place, &value, width);
}

// Changes the file's size. In half of the cases the end of the file that the superblock states
// changes too.
static void resize(struct mutant *m)
{
    int64_t size = m->size;
    if (below(m, 2) == 0) {
        m->size = 64 + below(m, size - 63);
    } else {
        m->size += 1 + below(m, m->seed->size + MUTANT_GROWTH - size);
        memset(m->bytes + size, (int)below(m, 256), (size_t)(m->size - size));
    }
    if (below(m, 2) == 0)
        memcpy(m->bytes + (m->bytes[8] < 2 ? 40 : 28), &m->size, sizeof m->size);
}

static void change(struct mutant *m)
{
    int64_t kind = below(m, 32);
    if (kind < 8)
        *choose_place(m, 1) ^= (uint8_t)(1 << below(m, 8));
    else if (kind < 14)
        *choose_place(m, 1) = (uint8_t)below(m, 256);
    else if (kind < 26)
        put_number(m);
    else if (kind < 31) {
        int64_t width = 1 + below(m, COPY < m->size ? COPY : m->size);
        const uint8_t *from = choose_place(m, width);
        memmove(choose_place(m, width), from, (size_t)width);
    } else if (m->size < m->seed->size + MUTANT_GROWTH)
        resize(m);
}

int64_t hdf5_mutate(const struct hdf5_seed *seed, uint64_t run_seed, int64_t number, uint8_t *bytes)
{
    uint32_t stream = lookup3((const uint8_t *)seed->name, (int64_t)strlen(seed->name));
    struct mutant m = {seed, dt_philox_init(run_seed, stream, (uint64_t)number), bytes, seed->size};
    memcpy(bytes, seed->bytes, (size_t)seed->size);
    if (number == 0)
        return m.size;
    for (int64_t n = 1 + below(&m, MOST_CHANGES); n > 0; n--)
        change(&m);
    bool corrects = below(&m, 4) > 0;
    for (int64_t i = 0; i < seed->n_blocks && corrects; i++) {
        const struct hdf5_block *block = &seed->blocks[i];
        uint32_t sum;
        if (block->size > 0 && block->at + block->size + 4 <= m.size &&
            !sum_matches(bytes, block, &sum))
            memcpy(bytes + block->sum, &sum, sizeof sum);
    }
    return m.size;
}
