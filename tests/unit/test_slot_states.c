// Tests the file of carried states: the bits come back in blocks of another size, types are
// converted, and what is wrong is named.
#include "base/safetensors.h"
#include "checkpoint/slot_states.h"

#include "scratch.h"
#include "typed.h"

enum { SLOTS = 12, ARRAYS = 4 };

// With these widths no array of 2 bytes ends at a multiple of 4.
static const struct {
    const char *name;
    enum dt_dtype type;
    int64_t width;
} kinds[ARRAYS] = {{"layers.0.conv_state", DT_BF16, 3},
                   {"layers.0.ssm_state", DT_F32, 5},
                   {"layers.1.keys", DT_BF16, 1},
                   {"layers.1.position", DT_I32, 1}};

// Values that bf16 and int32 hold exactly.
static double value(int array, int64_t slot, int64_t i)
{
    return (double)(array * 64 - 96 + slot * 4 + i);
}

static struct dt_slot_states make(int64_t slots, int64_t each, bool bf16)
{
    struct dt_slot_states s = {.slots = slots, .each = each, .n = ARRAYS};
    s.arrays = calloc(ARRAYS, sizeof *s.arrays);
    for (int i = 0; i < ARRAYS; i++) {
        struct dt_slot_array *a = &s.arrays[i];
        snprintf(a->name, sizeof a->name, "%s", kinds[i].name);
        a->type = !bf16 && kinds[i].type == DT_BF16 ? DT_F32 : kinds[i].type;
        a->width = kinds[i].width;
        a->last = (int32_t)value(i, SLOTS - 1, 0);
        a->offset = s.block_bytes;
        s.block_bytes += (each * a->width * dt_dtype_size(a->type) + 63) / 64 * 64;
    }
    s.blocks = calloc(1, (size_t)(slots / each * s.block_bytes));
    return s;
}

static void drop(struct dt_slot_states *s)
{
    free(s->arrays);
    free(s->blocks);
}

static void *at(const struct dt_slot_states *s, int array, int64_t slot, int64_t i)
{
    const struct dt_slot_array *a = &s->arrays[array];
    return s->blocks + slot / s->each * s->block_bytes + a->offset +
           (slot % s->each * a->width + i) * dt_dtype_size(a->type);
}

static void put(const struct dt_slot_states *s)
{
    for (int array = 0; array < ARRAYS; array++)
        for (int64_t slot = 0; slot < s->slots; slot++)
            for (int64_t i = 0; i < s->arrays[array].width; i++)
                set(at(s, array, slot, i), s->arrays[array].type, 0, value(array, slot, i));
}

static void check(const struct dt_slot_states *s)
{
    int wrong = 0;
    for (int array = 0; array < ARRAYS; array++)
        for (int64_t slot = 0; slot < s->slots; slot++)
            for (int64_t i = 0; i < s->arrays[array].width; i++)
                wrong +=
                    get(at(s, array, slot, i), s->arrays[array].type, 0) != value(array, slot, i);
    CHECK_INT(wrong, 0);
}

static void write_states(struct dt_manifest *manifest, int64_t slots, int64_t each, bool bf16)
{
    struct dt_slot_states s = make(slots, each, bf16);
    put(&s);
    *manifest = (struct dt_manifest){0};
    unlink(in_scratch(DT_SLOT_STATES_FILE));
    CHECK_OK(dt_slot_states_write(manifest, scratch, &s));
    CHECK(dt_manifest_find(manifest, DT_SLOT_STATES_FILE), "not listed");
    drop(&s);
}

static void test_round_trip(int64_t each, int64_t again, bool from_bf16, bool to_bf16)
{
    struct dt_manifest manifest;
    write_states(&manifest, SLOTS, each, from_bf16);
    struct dt_slot_states s = make(SLOTS, again, to_bf16);
    CHECK_OK(dt_slot_states_read(&manifest, scratch, &s));
    check(&s);
    drop(&s);
    dt_manifest_free(&manifest);
}

static void refuse(const struct dt_manifest *manifest, struct dt_slot_states s, const char *part)
{
    CHECK_FAILS(dt_slot_states_read(manifest, scratch, &s), DT_USER, part);
    drop(&s);
}

// Writes a file with these ranges of layers.1.position.
static void put_ranges(const char *const *names, int n)
{
    struct dt_safetensors_entry entries[8];
    struct dt_safetensors_writer *writer;
    static const int32_t zeros[SLOTS + 1]; // one too many, for a range that is too long
    int64_t counts[8];
    for (int i = 0; i < n; i++) {
        long first = 0, last = 0;
        sscanf(strchr(names[i], '['), "[%ld:%ld", &first, &last);
        counts[i] = last - first;
        entries[i] =
            (struct dt_safetensors_entry){names[i], DT_I32, 2, {counts[i] > 0 ? counts[i] : 1, 1}};
    }
    unlink(in_scratch(DT_SLOT_STATES_FILE));
    CHECK_OK(dt_safetensors_create(in_scratch(DT_SLOT_STATES_FILE), entries, n, NULL, 0, &writer));
    for (int i = 0; i < n; i++)
        CHECK_OK(dt_safetensors_write(writer, zeros, 4 * (counts[i] > 0 ? counts[i] : 1)));
    CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
}

static struct dt_slot_states position_only(void)
{
    struct dt_slot_states s = make(SLOTS, 3, true);
    s.arrays[0] = s.arrays[3];
    s.n = 1;
    return s;
}

static void test_refusals(void)
{
    struct dt_manifest manifest, none = {0};
    write_states(&manifest, SLOTS, 4, true);
    refuse(&none, make(SLOTS, 4, true), "lacks");
    refuse(&manifest, make(2 * SLOTS, 4, true), "slot 12 of layers.0.conv_state is missing");
    refuse(&manifest, make(SLOTS - 4, 4, true), "ends after the tensor's 8 slots");
    struct dt_slot_states s = make(SLOTS, 4, true);
    s.arrays[1].width = 4;
    refuse(&manifest, s, "must be fp32 of shape [4, 4]");
    s = make(SLOTS, 4, true);
    s.arrays[3].type = DT_F32;
    refuse(&manifest, s, "layers.1.position");
    s = make(SLOTS, 4, true);
    snprintf(s.arrays[2].name, sizeof s.arrays[2].name, "layers.1.values");
    refuse(&manifest, s, "layers.1.keys[");
    s = make(SLOTS, 4, true);
    s.arrays[3].last--;
    refuse(&manifest, s, "layers.1.position[8:12]: row 3 has 140, not in 0 … 139");
    static const struct {
        const char *names[3];
        const char *part;
    } cases[] = {
        {{"layers.1.position[0:12]", NULL}, NULL},
        {{"layers.1.position[5:12]", "layers.1.position[0:5]", NULL}, NULL},
        {{"layers.1.position[0:5]", "layers.1.position[4:12]", NULL},
         "duplicate slot 4 of layers.1.position"},
        {{"layers.1.position[0:5]", "layers.1.position[6:12]", NULL},
         "slot 5 of layers.1.position is missing"},
        {{"layers.1.position[0:13]", NULL},
         "layers.1.position[0:13] ends after the tensor's 12 slots"},
        {{"layers.1.position[-1:12]", NULL}, "is not a range of this model's carried states"},
        {{"layers.1.position[3:3]", NULL}, "is not a range of this model's carried states"},
        {{"layers.1.position[0:012]", NULL}, "is not a range of this model's carried states"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_ranges(cases[i].names, cases[i].names[1] ? 2 : 1);
        s = position_only();
        if (cases[i].part) {
            refuse(&manifest, s, cases[i].part);
            continue;
        }
        CHECK_OK(dt_slot_states_read(&manifest, scratch, &s));
        drop(&s);
    }
    dt_manifest_free(&manifest);
}

int main(void)
{
    make_scratch();
    static const int64_t each[] = {1, 2, 3, 12};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            test_round_trip(each[i], each[j], true, true);
    test_round_trip(4, 6, true, false);
    test_round_trip(4, 6, false, true);
    test_refusals();
    remove_scratch();
    return test_end();
}
