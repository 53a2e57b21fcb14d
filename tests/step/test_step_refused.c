// libdtrain_step refuses wrong calls, files and saved states with error codes, and a refused call
// changes nothing.
#include "model/kinds.h"

#include "step_calls.h"

#include <cjson/cJSON.h>
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>
#include <xxhash.h>

static void wrong_calls(const struct model_folder *folder)
{
    struct dtrain_step_info info;
    struct dtrain_step_output output;
    dtrain_step *handle = open_step(folder->path, DTRAIN_STEP_FP32, 2), *none = handle;
    float outputs[64], drawn[4];
    int32_t token = 36, wrong = 37, negative = -1;
    char *block, why[8];
    FINE(dtrain_step_describe(handle, &info));
    CHECK_INT(info.vocab_size, 37);
    CHECK_INT(info.n_values, 37);
    CHECK_INT(info.n_targets, 1);
    CHECK_INT(info.streams, 2);
    FINE(dtrain_step_describe_output(handle, 0, &output));
    CHECK_STR(output.name, "tokens");
    size_t size = (size_t)info.state_bytes;
    block = malloc(size);

    REFUSED(dtrain_step_open(NULL, NULL, &none), "path is NULL");
    CHECK(!none, "a failed open gives no handle");
    REFUSED(dtrain_step_open(folder->path, NULL, NULL), "handle is NULL");
    REFUSED(dtrain_step_open("/nowhere/at/all", NULL, &none), "/nowhere/at/all");
    static const struct {
        struct dtrain_step_options options;
        const char *words;
    } wrong_options[] = {{{.weights = 4}, "options.weights is 4, not in 0 … 3"},
                         {{.weights = -1}, "options.weights is -1"},
                         {{.streams = -1}, "options.streams is -1"},
                         {{.streams = 1 + (1 << 20)}, "options.streams is 1048577"},
                         {{.threads = -1}, "options.threads is -1"},
                         {{.threads = 4097}, "options.threads is 4097"},
                         {{.ema = 2}, "options.ema is 2"},
                         {{.ema = 1}, "ema.safetensors"}};
    for (size_t i = 0; i < sizeof wrong_options / sizeof *wrong_options; i++)
        REFUSED(dtrain_step_open(folder->path, &wrong_options[i].options, &none),
                wrong_options[i].words);

    FINE(dtrain_step_step(handle, 0, NULL, &token, outputs));
    FINE(dtrain_step_save(handle, 0, block, size));
    REFUSED(dtrain_step_step(NULL, 0, NULL, &token, outputs), "handle is NULL");
    REFUSED(dtrain_step_step(handle, 0, NULL, NULL, outputs), "tokens");
    REFUSED(dtrain_step_step(handle, 0, NULL, &wrong, outputs), "token 37 of stream 0");
    REFUSED(dtrain_step_step(handle, 1, NULL, &negative, outputs), "token -1 of stream 1");
    REFUSED(dtrain_step_step(handle, 2, NULL, &token, outputs), "there are 2");
    REFUSED(dtrain_step_step(handle, -1, NULL, &token, outputs), "there are 2");
    REFUSED(dtrain_step_batch(handle, 1, 2, NULL, &token, 0, NULL, outputs), "there are 2");
    REFUSED(dtrain_step_batch(handle, 0, INT32_MAX, NULL, &token, 0, NULL, outputs), "there are 2");
    REFUSED(dtrain_step_sample(handle, 0, NULL, &token, 1, NULL, outputs), "drawn is NULL");
    REFUSED(dtrain_step_sample(handle, 0, NULL, &token, -1, drawn, outputs), "temperature is -1");
    REFUSED(dtrain_step_sample(handle, 0, NULL, &token, NAN, drawn, outputs), "temperature is");
    REFUSED(dtrain_step_reset(handle, 2), "stream 2");
    REFUSED(dtrain_step_seed(handle, -1, 1), "stream -1");
    REFUSED(dtrain_step_save(handle, 0, NULL, size), "block is NULL");
    REFUSED(dtrain_step_save(handle, 0, block, size - 1), "bytes");
    REFUSED(dtrain_step_restore(handle, 0, block, size + 1), "bytes");
    REFUSED(dtrain_step_describe(handle, NULL), "info is NULL");
    REFUSED(dtrain_step_describe_output(handle, 1, &output), "index is 1");
    float after[64], before[64];
    // The refused steps have not advanced the stream.
    FINE(dtrain_step_step(handle, 0, NULL, &token, after));
    FINE(dtrain_step_restore(handle, 0, block, size));
    FINE(dtrain_step_step(handle, 0, NULL, &token, before));
    CHECK(memcmp(after, before, 37 * sizeof *after) == 0, "a refused call has changed a stream");
    REFUSED(dtrain_step_describe_output(handle, 1, &output), "index is 1");
    memset(why, 'x', sizeof why);
    dtrain_step_error(why, sizeof why); // the message is cut and ends with a zero
    CHECK_INT(memchr(why, 0, sizeof why) == why + sizeof why - 1, true);
    FINE(dtrain_step_reset(handle, 0));
    dtrain_step_error(why, sizeof why);
    CHECK_STR(why, "");
    dtrain_step_close(NULL);
    dtrain_step_close(handle);
    free(block);
}

// A checkpoint whose MANIFEST lists its files. Without a moving average it is not damaged; with one
// that MANIFEST does not list, it is.
static void no_average(const struct model_folder *folder)
{
    const struct dtrain_step_options options = {.ema = 1};
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[DT_PATH], lines[256] = "";
    dtrain_step *handle;
    for (int i = 0; i < 2; i++) {
        uint64_t hash;
        CHECK_OK(dt_path(path, "%s/%s", folder->path, names[i]));
        CHECK_OK(dt_hash_file(path, &hash, NULL));
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%016llx %lld %s\n",
                 (unsigned long long)hash, (long long)dt_file_size(path), names[i]);
    }
    CHECK_OK(dt_path(path, "%s/MANIFEST", folder->path));
    put_text(path, lines);
    dtrain_step_close(open_step(folder->path, DTRAIN_STEP_FP32, 1));
    REFUSED(dtrain_step_open(folder->path, &options, &handle), "has no moving average");
    CHECK_OK(dt_path(path, "%s/ema.safetensors", folder->path));
    put_text(path, "?");
    REFUSED(dtrain_step_open(folder->path, &options, &handle), "MANIFEST lacks ema.safetensors");
    // To play a moving average only its own file is read.
    CHECK_OK(dt_path(path, "%s/MANIFEST", folder->path));
    CHECK_INT(unlink(path), 0);
    CHECK_INT(rename(in_scratch("wrong/model.safetensors"), in_scratch("wrong/ema.safetensors")),
              0);
    FINE(dtrain_step_open(folder->path, &options, &handle));
    dtrain_step_close(handle);
    CHECK_INT(rename(in_scratch("wrong/ema.safetensors"), in_scratch("wrong/model.safetensors")),
              0);
    put_text(path, lines);
}

static void wrong_files(const struct model_folder *folder)
{
    char path[DT_PATH];
    dtrain_step *handle;
    CHECK_OK(dt_path(path, "%s/model.safetensors", folder->path));
    int64_t size = dt_file_size(path);
    CHECK_INT(truncate(path, size - 4), 0);
    REFUSED(dtrain_step_open(folder->path, NULL, &handle), "model.safetensors");
    CHECK_INT(truncate(path, 3), 0);
    REFUSED(dtrain_step_open(folder->path, NULL, &handle), "model.safetensors");
    CHECK_OK(dt_path(path, "%s/MANIFEST", folder->path));
    put_text(path, "not a manifest\n");
    REFUSED(dtrain_step_open(folder->path, NULL, &handle), "MANIFEST");
    CHECK_OK(dt_path(path, "%s/config.json", folder->path));
    put_text(path, "{\"model_type\": \"gpt2\"}");
    CHECK_INT(unlink(in_scratch("wrong/MANIFEST")), 0);
    REFUSED(dtrain_step_open(folder->path, NULL, &handle), "model_type");
    put_text(path, "{");
    REFUSED(dtrain_step_open(folder->path, NULL, &handle), "config.json");
}

// Saves all streams of a handle with their random numbers. A refused call must not change them.
static char *save_all(dtrain_step *handle, const struct dtrain_step_info *info)
{
    size_t size = (size_t)info->state_bytes;
    char *blocks = calloc((size_t)info->streams, size);
    for (int32_t i = 0; i < info->streams; i++)
        FINE(dtrain_step_save(handle, i, blocks + (size_t)i * size, size));
    return blocks;
}

static void check_unchanged(dtrain_step *handle, const struct dtrain_step_info *info,
                            const char *before, const char *what)
{
    char *now = save_all(handle, info);
    CHECK(memcmp(now, before, (size_t)info->state_bytes * (size_t)info->streams) == 0,
          "%s: a refused call has changed a stream", what);
    free(now);
}

// The header of a saved block, whose fields dtrain_step.h does not state: a mark, the checksum of
// all that follows, and hashes of the model and its weights. Random numbers follow.
enum { MARK = 8, SUM = 8, MODEL = 8, WEIGHTS = 8, HEADER = MARK + SUM + MODEL + WEIGHTS };

// Sets the checksum of a changed block, as a program that forges a block would.
static void seal(char *block, size_t size)
{
    uint64_t sum = XXH3_64bits(block + MARK + SUM, size - MARK - SUM);
    memcpy(block + MARK, &sum, sizeof sum);
}

// Restores blocks that are damaged anywhere, and blocks of other weights, of another model and of
// an older library.
static void wrong_blocks(const char *layers)
{
    struct model_folder folder = {.config = small_config(layers, "")}, other = folder,
                        wide = folder;
    struct dtrain_step_info info;
    wide.config.norm_eps = 1e-6;
    write_model(&folder, "blocks");
    write_model(&wide, "another model");
    write_model(&other, "other weights");
    // Only the last token's row differs.
    int64_t embedding = other.params.rows[other.params.n - 1].offset;
    other.weights[embedding + (other.config.vocab_size - 1) * other.config.d_model] += 0.5f;
    CHECK_OK(dt_hf_write_weights(in_scratch("other weights/model.safetensors"), &other.params,
                                 other.weights, NULL, NULL));
    dtrain_step *handle = open_step(folder.path, DTRAIN_STEP_AS_STORED, 1),
                *elsewhere = open_step(other.path, DTRAIN_STEP_AS_STORED, 1),
                *unlike = open_step(wide.path, DTRAIN_STEP_AS_STORED, 1),
                *narrow = open_step(folder.path, DTRAIN_STEP_BF16, 1);
    FINE(dtrain_step_describe(handle, &info));
    size_t size = (size_t)info.state_bytes, old_size = size - MARK - SUM - WEIGHTS;
    char *block = malloc(size), *old = malloc(size);
    step(handle, &info, 0, 5, 0, NULL);
    FINE(dtrain_step_save(handle, 0, block, size));
    for (size_t at = 0; at < size; at += at < 128 ? 1 : 61) {
        block[at] ^= 4;
        REFUSED(dtrain_step_restore(handle, 0, block, size),
                at < MARK ? "not a saved state" : "damaged");
        block[at] ^= 4;
    }
    REFUSED(dtrain_step_restore(elsewhere, 0, block, size), "other weights");
    REFUSED(dtrain_step_restore(unlike, 0, block, size), "another model");
    REFUSED(dtrain_step_restore(narrow, 0, block, size), "");
    // Blocks of older versions began with the model, random numbers and the state.
    memcpy(old, block + MARK + SUM, MODEL);
    memcpy(old + MODEL, block + HEADER, old_size - MODEL);
    REFUSED(dtrain_step_restore(handle, 0, old, old_size), "an older version");
    REFUSED(dtrain_step_restore(handle, 0, old, size), "an older version");
    REFUSED(dtrain_step_restore(handle, 0, old, 3), "3 bytes");
    check_unchanged(handle, &info, block, layers);
    FINE(dtrain_step_restore(handle, 0, block, size));
    dtrain_step_close(handle);
    dtrain_step_close(elsewhere);
    dtrain_step_close(unlike);
    dtrain_step_close(narrow);
    free(block);
    free(old);
    free_model(&folder);
    free_model(&other);
    free_model(&wide);
}

// Restores forged blocks, whose numbers are used as indices. The last number of a block is the
// count of attention's keys.
static void forged_blocks(void)
{
    // Wrong counts for a window of 30.
    static const int32_t wrong[] = {-1, 30, INT32_MAX, INT32_MIN};
    struct model_folder folder = {.config = small_config("attention", policy)};
    struct dtrain_step_info info;
    const int left = 5; // words of random numbers that are left, of four
    write_model(&folder, "counts");
    dtrain_step *handle = open_step(folder.path, DTRAIN_STEP_AS_STORED, 1);
    FINE(dtrain_step_describe(handle, &info));
    size_t size = (size_t)info.state_bytes;
    char *forged = malloc(size);
    step(handle, &info, 0, 5, 0, NULL);
    char *block = save_all(handle, &info), *count = forged + size - sizeof *wrong;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int32_t right;
        memcpy(forged, block, size);
        memcpy(&right, count, sizeof right);
        CHECK_INT(right, 1);
        memcpy(count, &wrong[i], sizeof *wrong);
        seal(forged, size);
        REFUSED(dtrain_step_restore(handle, 0, forged, size), "not a saved state");
    }
    memcpy(forged, block, size);
    memcpy(forged + HEADER + offsetof(struct dt_philox, left), &left, sizeof left);
    seal(forged, size);
    REFUSED(dtrain_step_restore(handle, 0, forged, size), "not a saved state");
    check_unchanged(handle, &info, block, "forged blocks");
    FINE(dtrain_step_restore(handle, 0, block, size));
    for (int i = 0; i < 40; i++) // until the window of keys is full
        step(handle, &info, 0, 5, 0, NULL);
    FINE(dtrain_step_save(handle, 0, forged, size));
    CHECK(memcmp(count, &(int32_t){29}, sizeof(int32_t)) == 0, "other keys than 29");
    FINE(dtrain_step_restore(handle, 0, forged, size));
    dtrain_step_close(handle);
    free(forged);
    free(block);
    free_model(&folder);
}

static void wrong_frames(void)
{
    struct model_folder folder = {.config = small_config("mamba", policy)};
    struct feed feed;
    struct dtrain_step_info info;
    struct dtrain_step_output output;
    float outputs[64];
    write_model(&folder, "policy");
    dtrain_step *handle = open_step(folder.path, DTRAIN_STEP_AS_STORED, 1);
    FINE(dtrain_step_describe(handle, &info));
    CHECK_INT(info.frame_size, 19);
    CHECK_INT(info.vocab_size, 0);
    CHECK_INT(info.n_ids, 2);
    CHECK_INT(info.n_outputs, 4);
    CHECK_INT(info.n_values, 3 + 5 + 2 + 2);
    CHECK_INT(info.n_targets, 3 + 1 + 2 + 2);
    FINE(dtrain_step_describe_output(handle, 3, &output));
    CHECK_STR(output.name, "speed");
    CHECK_INT(output.kind, DTRAIN_STEP_REGRESSION);
    CHECK_INT(output.first, 10);
    CHECK_INT(output.target, 6);
    CHECK_INT(output.target_width, 2);
    for (int32_t k = 0, first = 0; k < info.n_outputs; k++, first += output.width) {
        FINE(dtrain_step_describe_output(handle, k, &output));
        CHECK_INT(output.first, first);
    }
    feed = feed_at(&info, 1, 0);
    FINE(dtrain_step_step(handle, 0, feed.frame, feed.ids, outputs));
    REFUSED(dtrain_step_step(handle, 0, NULL, feed.ids, outputs), "frames of 19 numbers");
    REFUSED(dtrain_step_step(handle, 0, feed.frame, NULL, outputs), "2 ids");
    feed.ids[1] = 8; // the last id of its table
    FINE(dtrain_step_step(handle, 0, feed.frame, feed.ids, outputs));
    feed.ids[1] = 9;
    REFUSED(dtrain_step_step(handle, 0, feed.frame, feed.ids, outputs), "id 1 of stream 0 is 9");
    feed.ids[1] = 0;
    for (int strange = 0; strange < 2; strange++) {
        feed.frame[18] = strange ? INFINITY : NAN;
        REFUSED(dtrain_step_step(handle, 0, feed.frame, feed.ids, outputs),
                "number 18 of the frame");
    }
    dtrain_step_close(handle);
    free_model(&folder);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int64_t peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

// Claims sizes in config.json that the file of weights does not have. The shapes are refused before
// the claimed memory is allocated.
static void claimed_sizes(void)
{
    static const struct {
        const char *field, *says;
        double value;
    } claims[] = {
        {"vocab_size", "backbone.embeddings.weight is [37, 40], the model's is", 2e6},
        {"vocab_size", "backbone.embeddings.weight is [37, 40], the model's is", 67e6},
        {"hidden_size", "backbone.norm_f.weight is [40], the model's is [1048576]", 1 << 20},
        {"state_size", "mixer.A_log is [80, 5], the model's is [80, 256]", 256},
        {"num_hidden_layers", "backbone.layers.4095.norm.weight is missing", 4096}};
    struct model_folder folder = {.config = small_config("mamba", "")};
    write_model(&folder, "claims");
    const char *path = in_scratch("claims/config.json");
    char *text = get_text(path);
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        cJSON *json = cJSON_Parse(text);
        cJSON_DeleteItemFromObject(json, "intermediate_size");
        cJSON_DeleteItemFromObject(json, "time_step_rank");
        cJSON_SetNumberValue(cJSON_GetObjectItem(json, claims[i].field), claims[i].value);
        char *claim = cJSON_Print(json);
        put_text(path, claim);
        dtrain_step *handle;
        double start = now();
        int64_t peak = peak_kib();
        REFUSED(dtrain_step_open(folder.path, NULL, &handle), claims[i].says);
        CHECK(now() - start < 2, "%s %g: %.1f s", claims[i].field, claims[i].value, now() - start);
        CHECK(peak_kib() - peak < 64 << 10, "%s %g: %lld KiB", claims[i].field, claims[i].value,
              (long long)(peak_kib() - peak));
        free(claim);
        cJSON_Delete(json);
    }
    free(text);
    free_model(&folder);
}

// Runs a step of streams [0, S), more than are run together, in which stream `bad` gets numbers of
// 3e38. No stream may advance or draw, and all must continue as if the call had not been made.
static void bad_stream(dtrain_step *handle, const struct dtrain_step_info *info, int32_t bad,
                       const char *what)
{
    enum { S = 11 };
    float frames[S * 19], drawn[2][S * 8], outputs[2][S * 12];
    int32_t ids[S * 2];
    char says[64];
    for (int32_t s = 0; s < S; s++) {
        struct feed feed = feed_at(info, (uint32_t)s, 1);
        memcpy(frames + s * 19, feed.frame, 19 * sizeof *frames);
        memcpy(ids + s * 2, feed.ids, 2 * sizeof *ids);
    }
    char *before = save_all(handle, info);
    FINE(dtrain_step_batch(handle, 0, S, frames, ids, 1, drawn[0], outputs[0]));
    for (int32_t s = 0; s < S; s++)
        FINE(dtrain_step_restore(handle, s, before + s * info->state_bytes,
                                 (size_t)info->state_bytes));
    snprintf(says, sizeof says, "of stream %d", bad);
    frames[bad * 19 + 18] = NAN; // every number of every stream is checked
    REFUSED(dtrain_step_batch(handle, 0, S, frames, ids, 1, drawn[1], outputs[1]), says);
    check_unchanged(handle, info, before, what);
    for (int i = 0; i < 19; i++)
        frames[bad * 19 + i] = i % 2 ? 3e38f : -3e38f;
    NOT_FINITE(dtrain_step_batch(handle, 0, S, frames, ids, 1, drawn[1], outputs[1]), says);
    check_unchanged(handle, info, before, what);
    NOT_FINITE(dtrain_step_batch(handle, 0, S, frames, ids, 0, NULL, NULL), says);
    NOT_FINITE(dtrain_step_step(handle, bad, frames + bad * 19, ids, outputs[1]), says);
    NOT_FINITE(dtrain_step_sample(handle, bad, frames + bad * 19, ids, 0, drawn[1], NULL), says);
    check_unchanged(handle, info, before, what);
    memcpy(frames + bad * 19, feed_at(info, (uint32_t)bad, 1).frame, 19 * sizeof *frames);
    FINE(dtrain_step_batch(handle, 0, S, frames, ids, 1, drawn[1], outputs[1]));
    CHECK(memcmp(drawn[0], drawn[1], sizeof drawn[0]) == 0, "%s: drawn after a failure", what);
    CHECK(memcmp(outputs[0], outputs[1], sizeof outputs[0]) == 0, "%s: after a failure", what);
    free(before);
}

// The advice must be something that a caller of the library can follow.
static void out_of_memory(void)
{
    struct model_folder folder = {.config = small_config("attention", "")};
    const struct dtrain_step_options options = {.streams = 1 << 20};
    dtrain_step *handle;
    char why[2048];
    WHOLE_OF(folder.config, attn_window) = 1 << 12; // a width that no tensor has: 1.4 TB of states
    write_model(&folder, "wide window");
    CHECK_INT(dtrain_step_open(folder.path, &options, &handle), DTRAIN_STEP_MACHINE);
    dtrain_step_error(why, sizeof why);
    CHECK(strstr(why, "out of memory") && strstr(why, "fewer streams") && !strstr(why, "data."),
          "%s", why);
    free_model(&folder);
}

static void not_finite(const char *kind, bool autoregressive)
{
    char layers[64], what[96];
    snprintf(layers, sizeof layers, "mamba %s", kind);
    struct model_folder folder = {.config = small_config(layers, policy)};
    FLAG_OF(folder.config, autoregressive) = autoregressive;
    write_model(&folder, layers);
    for (int32_t weights = DTRAIN_STEP_FP32; weights <= DTRAIN_STEP_INT8; weights++) {
        struct dtrain_step_info info;
        dtrain_step *handle = open_step(folder.path, weights, 11);
        FINE(dtrain_step_describe(handle, &info));
        snprintf(what, sizeof what, "%s, weights %d", layers, weights);
        for (int32_t s = 0; s < info.streams; s += 2)
            // States of neighbours are in different places.
            step(handle, &info, s, (uint32_t)s, 0, NULL);
        bad_stream(handle, &info, 10, what); // stream 10 is in the second group that runs together
        bad_stream(handle, &info, 3, what);
        dtrain_step_close(handle);
    }
    free_model(&folder);
}

// Weights of 3e38 are finite and load. Then an output is not finite, or a norm overflows, which
// would make all logits 0.
static void large_weight(const char *name, int32_t weights, const char *says)
{
    struct model_folder folder = {.config = small_config("mamba", "")};
    struct dtrain_step_info info;
    float outputs[64], drawn[1];
    const int32_t token = 0;
    folder.config.tie_embeddings = false;
    write_model(&folder, "large");
    const struct dt_param *row = dt_params_find(&folder.params, name);
    for (int64_t i = 0; i < folder.config.d_model; i++)
        folder.weights[row->offset + i] = 3e38f;
    CHECK_OK(dt_hf_write_weights(in_scratch("large/model.safetensors"), &folder.params,
                                 folder.weights, NULL, NULL));
    dtrain_step *handle = open_step(folder.path, weights, 1);
    FINE(dtrain_step_describe(handle, &info));
    char *before = save_all(handle, &info);
    NOT_FINITE(dtrain_step_step(handle, 0, NULL, &token, outputs), says);
    NOT_FINITE(dtrain_step_sample(handle, 0, NULL, &token, 1, drawn, NULL), says);
    check_unchanged(handle, &info, before, "a weight of 3e38");
    dtrain_step_close(handle);
    free(before);
    free_model(&folder);
}

// A model that was opened and closed, or refused, must leave no memory allocated. Under sanitizers
// they check this themselves.
static void memory_left(const struct model_folder *folder)
{
    enum { TIMES = 64 };
    const struct dtrain_step_options refused = {.action_steps = 9};
    dtrain_step *handle;
    size_t before = 0;
    for (int i = 0; i <= TIMES; i++) {
        CHECK_INT(dtrain_step_open(folder->path, &refused, &handle), DTRAIN_STEP_USER);
        FINE(dtrain_step_open(folder->path, NULL, &handle));
        dtrain_step_close(handle);
        // The first round fills the caches of malloc.
        before = i == 0 ? mallinfo2().uordblks : before;
    }
    long long more = (long long)mallinfo2().uordblks - (long long)before;
    CHECK(more < 16 * TIMES, "%lld bytes are left by %d models", more, TIMES);
}

int main(void)
{
    struct model_folder folder = {.config = small_config("mamba", "")};
    make_scratch();
    wrong_frames();
    forged_blocks();
    claimed_sizes();
    out_of_memory();
    for (int i = 0; dt_block_kinds[i]; i++) {
        wrong_blocks(dt_block_kinds[i]->name);
        not_finite(dt_block_kinds[i]->name, i % 2);
    }
    for (int32_t weights = DTRAIN_STEP_FP32; weights <= DTRAIN_STEP_INT8; weights++) {
        large_weight("backbone.embeddings.weight", weights, "\"residual\" of stream 0");
        large_weight("backbone.layers.0.mixer.out_proj.weight", weights,
                     "\"residual\" of stream 0");
        large_weight("lm_head.weight", weights, "\"tokens\" of stream 0");
    }
    write_model(&folder, "wrong");
    memory_left(&folder);
    wrong_calls(&folder);
    no_average(&folder);
    wrong_files(&folder);
    free_model(&folder);
    remove_scratch();
    return test_end();
}
