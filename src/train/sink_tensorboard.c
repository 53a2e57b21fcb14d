// events.out.tfevents.*, for TensorBoard: scalars ("train/loss", "eval/loss",
// "train/HEAD/accuracy", "throughput/tokens_per_s", "memory/memory_mb") and the settings that
// decide what is trained, for its table of hyperparameters. Train events are written every
// log.every steps, all other events always. Each start writes a new file, which begins with the
// step from which TensorBoard must drop data of earlier files: steps that a killed run had trained
// after its last checkpoint.
//
// The format is that of TensorFlow's record_writer.h, event.proto and summary.proto. A record is
// the length of an Event (8 bytes), the length's checksum (4), the Event as a protocol buffer, its
// checksum (4); all little-endian. Settings: plugin_data.proto and api.proto of the plugin hparams.
#include "base/file.h"
#include "base/memory.h"
#include "train/metrics.h"

#include <time.h>
#include <unistd.h>

enum { VARINT = 0, DOUBLE = 1, BYTES = 2, FLOAT = 5 }; // wire types
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SESSION_LOG_STATUS = 1,
    SESSION_START = 1, // its value
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    TENSOR_TYPE = 1, // 1: float
    TENSOR_SHAPE = 2,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    PLUGIN_CONTENT = 2,
    HPARAMS_START = 3, // of a session
    START_SETTING = 1,
    START_TIME = 5,
    SETTING_NAME = 1,
    SETTING_VALUE = 2,
    SETTING_NUMBER = 2, // kinds of a value
    SETTING_TEXT = 3,
};
static const char file_version[] = "brain.Event:2";

enum {
    HEAD = 12, // bytes of a record before its Event
    TAG_ROOM = 192,
    ROOM = 96 << 10,
    FIELDS_MAX = 32, // numbers of an event, without heads and sources
};
_Static_assert((DT_HEAD_NUMBERS * DT_OUTPUTS_MAX + DT_SOURCE_NUMBERS * DT_SOURCES_MAX +
                FIELDS_MAX) *
                       (TAG_ROOM + 32) <
                   ROOM,
               "the largest event must fit");

struct message {
    int64_t size;
    uint8_t at[ROOM];
};

struct tensorboard {
    struct dt_metrics_config config;
    char path[DT_PATH];
    int fd;
    struct message record, summary, value;
};

static void put(struct message *m, const void *bytes, size_t size)
{
    memcpy(m->at + m->size, bytes, size);
    m->size += (int64_t)size;
}

static void put_varint(struct message *m, uint64_t value)
{
    for (; value > 127; value >>= 7)
        m->at[m->size++] = (uint8_t)(value | 128);
    m->at[m->size++] = (uint8_t)value;
}

static void put_key(struct message *m, int field, int wire_type)
{
    put_varint(m, (uint64_t)(field << 3 | wire_type));
}

static void put_bytes(struct message *m, int field, const void *bytes, size_t size)
{
    put_key(m, field, BYTES);
    put_varint(m, size);
    put(m, bytes, size);
}

// The text must be valid UTF-8.
static void put_text(struct message *m, int field, const char *text)
{
    put_bytes(m, field, text, strlen(text));
}

static void put_message(struct message *m, int field, const struct message *inner)
{
    put_bytes(m, field, inner->at, (size_t)inner->size);
}

static void put_scalar(struct tensorboard *sink, const char *tag, double number)
{
    struct message *value = &sink->value;
    float simple = (float)number;
    value->size = 0;
    put_text(value, VALUE_TAG, tag);
    put_key(value, VALUE_SIMPLE, FLOAT);
    put(value, &simple, sizeof simple);
    put_message(&sink->summary, SUMMARY_VALUE, value);
}

// CRC-32C (RFC 3720, appendix B.4), masked by rotation and offset, for data that contain checksums.
static uint32_t checksum(const uint8_t *bytes, int64_t size)
{
    uint32_t crc = ~0u;
    for (int64_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void begin_event(struct tensorboard *sink, int64_t step)
{
    struct message *record = &sink->record;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall_time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    record->size = HEAD;
    put_key(record, EVENT_WALL_TIME, DOUBLE);
    put(record, &wall_time, sizeof wall_time);
    put_key(record, EVENT_STEP, VARINT);
    put_varint(record, (uint64_t)step);
}

// Writes the record by one write(2), so a killed job leaves at most one torn record, at the end.
static dt_status end_event(struct tensorboard *sink)
{
    struct message *record = &sink->record;
    uint64_t length = (uint64_t)(record->size - HEAD);
    memcpy(record->at, &length, sizeof length);
    uint32_t sum = checksum(record->at, sizeof length);
    memcpy(record->at + sizeof length, &sum, sizeof sum);
    sum = checksum(record->at + HEAD, (int64_t)length);
    put(record, &sum, sizeof sum);
    return dt_write_all(sink->fd, sink->path, record->at, record->size);
}

// Makes TensorBoard drop records of `step` and later steps.
static dt_status start_session(struct tensorboard *sink, int64_t step)
{
    sink->value.size = 0;
    put_key(&sink->value, SESSION_LOG_STATUS, VARINT);
    put_varint(&sink->value, SESSION_START);
    begin_event(sink, step);
    put_message(&sink->record, EVENT_SESSION_LOG, &sink->value);
    return end_event(sink);
}

static void put_setting(struct message *start, struct message *entry,
                        const struct dt_config_row *row, const char *text)
{
    char *end;
    double number = strtod(text, &end);
    bool is_number = *end == 0 && end != text &&
                     (row->key->type == DT_CONFIG_INT || row->key->type == DT_CONFIG_FLOAT);
    struct message *value = entry + 1;
    value->size = entry->size = 0;
    if (is_number) {
        put_key(value, SETTING_NUMBER, DOUBLE);
        put(value, &number, sizeof number);
    } else
        put_text(value, SETTING_TEXT, text);
    put_text(entry, SETTING_NAME, row->name);
    put_message(entry, SETTING_VALUE, value);
    put_message(start, START_SETTING, entry);
}

// Writes the run's settings that decide what is trained.
static dt_status write_settings(struct tensorboard *sink)
{
    enum { START, ENTRY, ENTRY_VALUE, MESSAGES };
    const struct dt_config *settings = sink->config.settings;
    struct message *m;
    struct timespec now;
    if (!settings)
        return DT_OK;
    DT_TRY(DT_NEW(&m, MESSAGES, "the settings for TensorBoard"));
    struct message *start = &m[START], *content = &m[ENTRY], *plugin = &m[ENTRY_VALUE],
                   *value = &sink->value;
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);) {
        const struct dt_config_value *setting = dt_config_find(settings, row.name);
        bool decides = !setting->hidden && !row.key->neutral && !row.section->neutral;
        if (decides && setting->text[0] && start->size < ROOM / 2)
            put_setting(start, content, &row, setting->text);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec;
    put_key(start, START_TIME, DOUBLE);
    put(start, &seconds, sizeof seconds);

    content->size = plugin->size = value->size = sink->summary.size = 0;
    put_message(content, HPARAMS_START, start);
    put_text(plugin, PLUGIN_NAME, "hparams");
    put_message(plugin, PLUGIN_CONTENT, content);
    content->size = 0; // now the metadata around it
    put_message(content, METADATA_PLUGIN, plugin);
    plugin->size = 0; // and the dummy tensor that each value must have
    put_key(plugin, TENSOR_TYPE, VARINT);
    put_varint(plugin, 1);
    put_bytes(plugin, TENSOR_SHAPE, "", 0);
    put_text(value, VALUE_TAG, "_hparams_/session_start_info");
    put_message(value, VALUE_TENSOR, plugin);
    put_message(value, VALUE_METADATA, content);
    put_message(&sink->summary, SUMMARY_VALUE, value);
    begin_event(sink, 0);
    put_message(&sink->record, EVENT_SUMMARY, &sink->summary);
    free(m);
    return end_event(sink);
}

static void close_tensorboard(void *state)
{
    struct tensorboard *sink = state;
    if (sink->fd >= 0)
        close(sink->fd);
    free(sink);
}

static dt_status open_tensorboard(const struct dt_metrics_config *config, void **state)
{
    struct tensorboard *sink;
    char host[256] = "";
    dt_status status;
    if (!config->tensorboard)
        return DT_OK;
    DT_TRY(DT_NEW(&sink, 1, "TensorBoard's events"));
    sink->config = *config;
    sink->fd = -1;
    gethostname(host, sizeof host - 1);
    DT_TRY_GOTO(status, fail,
                dt_path(sink->path, "%s/events.out.tfevents.%010lld.%s.%d", config->folder,
                        (long long)time(NULL), host, (int)getpid()));
    DT_TRY_GOTO(status, fail, dt_open_append(sink->path, false, &sink->fd));
    begin_event(sink, 0);
    put_bytes(&sink->record, EVENT_FILE_VERSION, file_version, sizeof file_version - 1);
    DT_TRY_GOTO(status, fail, end_event(sink));
    DT_TRY_GOTO(status, fail, start_session(sink, config->first_step));
    DT_TRY_GOTO(status, fail, write_settings(sink));
    *state = sink;
    return DT_OK;
fail:
    close_tensorboard(sink);
    return status;
}

static dt_status sync_tensorboard(void *state)
{
    struct tensorboard *sink = state;
    return dt_fsync(sink->fd) == 0 ? DT_OK : DT_FAIL_ERRNO("write", sink->path);
}

static dt_status write_tensorboard(void *state, const struct dt_metric_event *event)
{
    struct tensorboard *sink = state;
    const char *kind = dt_metric_name(event->kind);
    char tag[TAG_ROOM];
    // Independent of where the run was resumed.
    if (event->kind == DT_METRIC_TRAIN && event->step % sink->config.every != 0 &&
        event->step != 1 && event->step != sink->config.steps)
        return DT_OK;
    if (event->kind == DT_METRIC_ROLLBACK)
        DT_TRY(start_session(sink, event->step + 1));
    sink->summary.size = 0;
    for (const struct dt_metric_field *field = dt_metric_fields; field->name; field++) {
        bool is_step = field->offset == offsetof(struct dt_metric_event, step);
        if (is_step || field->type == DT_VALUE_TEXT || !dt_metric_has(event, field))
            continue;
        const void *value = (const char *)event + field->offset;
        snprintf(tag, sizeof tag, "%s/%s", field->group ? field->group : kind, field->name);
        put_scalar(sink, tag,
                   field->type == DT_VALUE_INT    ? (double)*(const int64_t *)value
                   : field->type == DT_VALUE_FLAG ? *(const bool *)value
                                                  : *(const double *)value);
    }
    for (int k = 0; event->heads && k < event->heads->n; k++) {
        struct dt_named_number list[DT_HEAD_NUMBERS];
        int n = dt_head_numbers(event->heads, event->sum, event->scores, k, list);
        for (int i = 0; i < n; i++) {
            snprintf(tag, sizeof tag, "%s/%s/%s", kind, event->heads->list[k].name, list[i].name);
            put_scalar(sink, tag, list[i].value);
        }
    }
    for (int k = 0; k < event->n_sources; k++) {
        struct dt_named_number list[DT_SOURCE_NUMBERS];
        int n = dt_source_numbers(event, k, list);
        for (int i = 0; i < n; i++) {
            snprintf(tag, sizeof tag, "%s_%s/%.160s", kind, list[i].name, event->sources[k].name);
            put_scalar(sink, tag, list[i].value);
        }
    }
    begin_event(sink, event->step);
    put_message(&sink->record, EVENT_SUMMARY, &sink->summary);
    return end_event(sink);
}

const struct dt_metric_sink dt_sink_tensorboard = {.open = open_tensorboard,
                                                   .write = write_tensorboard,
                                                   .sync = sync_tensorboard,
                                                   .close = close_tensorboard};
