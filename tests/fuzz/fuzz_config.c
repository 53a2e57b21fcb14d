// Fuzzes the configuration reader. An input is the text of a file and then words, each after a byte
// 0xff: "e…" is a word of the environment, other words are of the command line. The sanitizers
// check memory. In addition, the result must be success or DT_USER with a message, and an accepted
// configuration must be the same when its echo is read back.
#include "data/reader.h"
#include "job/settings.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 16 };

struct input {
    const char *text;
    int64_t size;
    char *words; // copies that end with a zero
    const char *environment[WORDS + 1], *overrides[WORDS];
    int n_environment, n_overrides;
};

static void split(const uint8_t *data, size_t size, struct input *input)
{
    const uint8_t *first = size ? memchr(data, 0xff, size) : NULL;
    size_t rest = first ? (size_t)(data + size - first) : 0;
    memset(input, 0, sizeof *input);
    input->text = (const char *)data;
    input->size = (int64_t)(size - rest);
    input->words = calloc(rest + 1, 1);
    for (size_t i = 0; i < rest; i++)
        input->words[i] = first[i] == 0xff ? 0 : (char)first[i];
    for (size_t i = 0; i < rest; i++)
        if (first[i] == 0xff) {
            const char *word = input->words + i + 1;
            if (word[0] == 'e' && input->n_environment < WORDS)
                input->environment[input->n_environment++] = word + 1;
            else if (word[0] != 'e' && input->n_overrides < WORDS)
                input->overrides[input->n_overrides++] = word;
        }
}

// No kinds and readers: they would link all of dtrain.
const struct dt_config_key *dt_model_keys(void)
{
    return dt_model_fields;
}

const char *dt_reader_formats(void)
{
    return "auto|tokens";
}

static void insist(bool condition)
{
    if (!condition)
        abort();
}

static void read_back(const struct dt_config *config, const struct dt_settings *settings)
{
    static struct dt_settings again;
    struct dt_config *second;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    dt_config_echo(config, out);
    fclose(out);
    insist(dt_config_parse(&dt_settings_table, NULL, "echo", text, (int64_t)size, NULL, NULL, 0,
                           &again, &second) == DT_OK);
    insist(memcmp(&again, settings, sizeof again) == 0);
    dt_config_free(second);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct dt_settings settings;
    struct dt_config *config;
    struct input input;
    dt_status status;
    dt_error_clear();
    split(data, size, &input);
    status =
        dt_config_parse(&dt_settings_table, NULL, "fuzz.ini", input.text, input.size,
                        input.environment, input.overrides, input.n_overrides, &settings, &config);
    if (status == DT_OK) {
        read_back(config, &settings);
        struct dt_problems problems = {0};
        dt_settings_check(&problems, &settings, config);
        status = dt_problems_raise(&problems, NULL);
        dt_config_free(config);
    } else {
        insist(config == NULL);
    }
    insist(status == DT_OK || (status == DT_USER && dt_error_current()->message[0]));
    free(input.words);
    return 0;
}
