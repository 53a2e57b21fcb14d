// Reads TensorBoard's event files with a reader that shares no code with the sink: framing and
// checksums of each record, which steps are written, their tags and values, the start of a session
// where a run starts, resumes or rolls back, and the settings.
#include "train/metrics.h"

#include "scratch.h"

#include <glob.h>
#include <time.h>
#include <unistd.h>

static uint32_t crc32c(const uint8_t *bytes, int64_t size)
{
    uint32_t table[256], crc = 0xffffffffu;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0x82f63b78u : table[i] >> 1;
    }
    for (int64_t i = 0; i < size; i++)
        crc = table[(crc ^ bytes[i]) & 255] ^ crc >> 8;
    return ~crc;
}

static uint32_t masked(const uint8_t *bytes, int64_t size)
{
    uint32_t crc = crc32c(bytes, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// A field of a protocol buffer: its number and its value, or its bytes.
struct field {
    int number;
    uint64_t value;
    const uint8_t *bytes, *end; // bytes of a message or text
};

static uint64_t varint(const uint8_t **at)
{
    uint64_t value = 0;
    int shift = 0;
    do
        value |= (uint64_t)(**at & 127) << shift, shift += 7;
    while (*(*at)++ & 128);
    return value;
}

static bool next_field(const uint8_t **at, const uint8_t *end, struct field *field)
{
    if (*at >= end)
        return false;
    uint64_t key = varint(at);
    *field = (struct field){.number = (int)(key >> 3)};
    switch (key & 7) {
    case 0:
        field->value = varint(at);
        break;
    case 1:
    case 5: {
        size_t size = (key & 7) == 1 ? 8 : 4;
        memcpy(&field->value, *at, size);
        *at += size;
        break;
    }
    case 2: {
        uint64_t size = varint(at);
        field->bytes = *at;
        field->end = *at += size;
        break;
    }
    default:
        CHECK(false, "wire type %d", (int)(key & 7));
        return false;
    }
    CHECK(*at <= end, "field %d ends after its message", field->number);
    return *at <= end;
}

// Returns the message in field `number`. Without one the test fails.
static struct field inner(struct field message, int number)
{
    struct field f;
    while (next_field(&message.bytes, message.end, &f))
        if (f.number == number)
            return f;
    CHECK(false, "no field %d", number);
    return (struct field){0};
}

// Appends the settings in a value's metadata: " hparams{optim.lr=0.5 run.precision=fp32 … }".
static void add_settings(struct field metadata, char *text)
{
    struct field plugin = inner(metadata, 1), name = inner(plugin, 1), f;
    struct field start = inner(inner(plugin, 2), 3);
    sprintf(text + strlen(text), "%.*s{", (int)(name.end - name.bytes), (const char *)name.bytes);
    while (next_field(&start.bytes, start.end, &f))
        if (f.number == 1) {
            struct field key = inner(f, 1), value = inner(f, 2), v;
            double number;
            next_field(&value.bytes, value.end, &v);
            memcpy(&number, &v.value, sizeof number);
            sprintf(text + strlen(text), " %.*s=", (int)(key.end - key.bytes),
                    (const char *)key.bytes);
            if (v.number == 2)
                sprintf(text + strlen(text), "%g", number);
            else
                sprintf(text + strlen(text), "%.*s", (int)(v.end - v.bytes), (const char *)v.bytes);
        }
    strcat(text, " }");
}

static void add_value(struct field value, char *text)
{
    struct field f;
    for (const uint8_t *at = value.bytes; next_field(&at, value.end, &f);) {
        float number;
        memcpy(&number, &f.value, sizeof number);
        if (f.number == 1)
            sprintf(text + strlen(text), " %.*s=", (int)(f.end - f.bytes), (const char *)f.bytes);
        else if (f.number == 2)
            sprintf(text + strlen(text), "%g", (double)number);
        else if (f.number == 9)
            add_settings(f, text);
    }
}

// Appends an event: "step 3: train/loss=2 …\n".
static void add_event(const uint8_t *at, const uint8_t *end, char *text)
{
    struct field f, value;
    while (next_field(&at, end, &f)) {
        double wall_time;
        memcpy(&wall_time, &f.value, sizeof wall_time);
        if (f.number == 1)
            CHECK(fabs(wall_time - (double)time(NULL)) < 100, "wall time %.1f", wall_time);
        else if (f.number == 2)
            sprintf(text + strlen(text), "step %d:", (int)f.value);
        else if (f.number == 3)
            sprintf(text + strlen(text), " %.*s", (int)(f.end - f.bytes), (const char *)f.bytes);
        else if (f.number == 7 && next_field(&f.bytes, f.end, &value))
            strcat(text, value.number == 1 && value.value == 1 ? " start" : " another session");
        else if (f.number == 5)
            while (next_field(&f.bytes, f.end, &value))
                add_value(value, text);
    }
    strcat(text, "\n");
}

static void read_events(const char *path, char *text)
{
    char *file;
    int64_t size;
    text[0] = 0;
    CHECK_OK(dt_read_file(path, 1 << 20, &file, &size));
    const uint8_t *at = (const uint8_t *)file, *end = at + size;
    while (at < end) {
        uint64_t length = 0;
        uint32_t sums[2] = {0};
        memcpy(&length, at, 8);
        memcpy(&sums[0], at + 8, 4);
        CHECK(at + 16 + length <= end, "a record of %d bytes is torn", (int)length);
        if (at + 16 + length > end)
            break;
        memcpy(&sums[1], at + 12 + length, 4);
        CHECK_INT(sums[0], masked(at, 8));
        CHECK_INT(sums[1], masked(at + 12, (int64_t)length));
        add_event(at + 12, at + 12 + length, text);
        at += 16 + length;
    }
    free(file);
}

static const struct dt_outputs heads = {.n = 1, .list = {{.name = "aim", .measure = "error"}}};
static const struct dt_source source = {.name = "web/*.h5"};
static const struct dt_loss_part part = {6, 4};
static const struct dt_loss_sum sum = {.counted = 4, .metrics = {2, 8, 4}};

static void train(struct dt_metrics *metrics, int64_t step)
{
    struct dt_metric_event event = {.kind = DT_METRIC_TRAIN,
                                    .step = step,
                                    .tokens = 64 * step,
                                    .loss = 0.5,
                                    .lr = 0.25,
                                    .skipped = step == 1};
    CHECK_OK(dt_metrics_write(metrics, &event));
}

#define REST                                                                                       \
    " throughput/step_ms=0 throughput/tokens_per_s=0 throughput/data_wait_ms=0 "                   \
    "throughput/comm_wait_ms=0 throughput/idle_ms=0 memory/memory_mb=0 train/loss_z=0 "            \
    "train/skipped="
#define TRAIN(step, tokens, skipped)                                                               \
    "step " #step ": train/epoch=0 train/loss=0.5 train/grad_norm=0 train/lr=0.25 "                \
    "train/tokens=" #tokens REST #skipped "\n"

// Exactly the settings that decide what is trained are hyperparameters of TensorBoard, as numbers
// or texts. A byte that is not text becomes a question mark.
static void test_settings(void)
{
    static const char text[] =
        "[run]\nsteps = 3\nname = n\n[optim]\nlr = 0.5\n[model]\nd_model = 32\n"
        "[data]\nseq_len = 8\nbatch = 2\ntrain = t\ninputs = \xc3\xa9\n";
    static char events[16384];
    struct dt_settings settings;
    struct dt_metrics_config config = {.folder = "set",
                                       .steps = 3,
                                       .every = 1,
                                       .first_step = 1,
                                       .unit = "tokens",
                                       .tensorboard = true,
                                       .console = DT_CONSOLE_PLAIN};
    struct dt_config *parsed;
    struct dt_metrics *metrics = NULL;
    glob_t found;
    CHECK_OK(dt_make_dirs("set"));
    CHECK_OK(dt_config_parse(&dt_settings_table, NULL, "c.ini", text, sizeof text - 1, NULL, NULL,
                             0, &settings, &parsed));
    config.settings = parsed;
    CHECK_OK(dt_metrics_open(&config, &metrics));
    dt_metrics_close(metrics);
    CHECK_INT(glob("set/events.out.tfevents.[0-9]*", 0, NULL, &found), 0);
    read_events(found.gl_pathv[0], events);
    globfree(&found);
    static const char *const words[] = {"step 0: _hparams_/session_start_info=hparams{",
                                        " optim.lr=0.5 ", " run.steps=3 ",
                                        " optim.schedule=cosine ", " data.inputs=\xc3\xa9 "};
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++)
        CHECK(strstr(events, words[i]), "'%s' is not in %s", words[i], events);
    CHECK(!strstr(events, "run.name") && !strstr(events, "log."), "neutral ones: %s", events);
    dt_config_free(parsed);
}

// A run of twelve steps is resumed after step 3 and rolls back from step 8 to step 6.
static void test_events(void)
{
    static char text[8192];
    struct dt_metrics_config config = {.folder = ".",
                                       .resume_step = 3,
                                       .first_step = 4,
                                       .steps = 12,
                                       .every = 5,
                                       .console = DT_CONSOLE_PLAIN,
                                       .unit = "tokens",
                                       .tensorboard = true};
    struct dt_metrics *metrics = NULL;
    glob_t found;
    CHECK_OK(dt_metrics_open(&config, &metrics));
    train(metrics, 1); // the first and the last step are always recorded
    for (int64_t step = 4; step <= 8; step++)
        train(metrics, step);
    CHECK_OK(dt_metrics_write(metrics, &(struct dt_metric_event){.kind = DT_METRIC_EVAL,
                                                                 .step = 8,
                                                                 .loss = NAN,
                                                                 .heads = &heads,
                                                                 .sum = &sum,
                                                                 .n_sources = 1,
                                                                 .sources = &source,
                                                                 .losses = &part}));
    CHECK_OK(dt_metrics_write(
        metrics, &(struct dt_metric_event){
                     .kind = DT_METRIC_CHECKPOINT, .step = 8, .path = "p", .stall_ms = 2}));
    CHECK_OK(dt_metrics_write(
        metrics, &(struct dt_metric_event){
                     .kind = DT_METRIC_ROLLBACK, .step = 6, .from = 8, .left_out = "7:8"}));
    train(metrics, 11);
    train(metrics, 12);
    CHECK_OK(dt_metrics_sync(metrics));
    dt_metrics_close(metrics);

    CHECK_INT(glob("events.out.tfevents.[0-9]*", 0, NULL, &found), 0);
    CHECK_INT(found.gl_pathc, 1);
    read_events(found.gl_pathv[0], text);
    globfree(&found);
    CHECK_STR(text,
              "step 0: brain.Event:2\n"
              "step 4: start\n" TRAIN(1, 64, 1)
                  TRAIN(5, 320,
                        0) "step 8: eval/loss=nan eval/tokens=0 eval/aim/loss=0.5 eval/aim/error=2 "
                           "eval_loss/web/*.h5=1.5 eval_tokens/web/*.h5=4\n"
                           "step 8: checkpoint/stall_ms=2 checkpoint/write_ms=0\n"
                           "step 7: start\n"
                           "step 6: rollback/from=8\n" TRAIN(12, 768, 0));
}

static void test_switched_off(void)
{
    struct dt_metrics_config config = {.folder = "off", .steps = 1, .every = 1, .unit = "tokens"};
    struct dt_metrics *metrics = NULL;
    glob_t found;
    CHECK_OK(dt_make_dirs("off"));
    CHECK_OK(dt_metrics_open(&config, &metrics));
    train(metrics, 1);
    CHECK_OK(dt_metrics_sync(metrics));
    dt_metrics_close(metrics);
    CHECK_INT(glob("off/events.*", 0, NULL, &found), GLOB_NOMATCH);
}

int main(void)
{
    make_scratch();
    CHECK(chdir(scratch) == 0, "no scratch folder");
    CHECK_INT(crc32c((const uint8_t *)"123456789", 9), 0xe3069283); // the published check value
    test_events();
    test_settings();
    test_switched_off();
    remove_scratch();
    return test_end();
}
