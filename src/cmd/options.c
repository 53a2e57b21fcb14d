// Parses a command line: finds the command, converts the values of its options by their rows, and
// keeps the other words.
#include "cmd/cmd.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/nearest.h"

#include <string.h>

#define REJECT(command, ...) DT_FAIL(DT_USER, hint_of(command), __VA_ARGS__)

static const char *hint_of(const struct dt_command *command)
{
    static char text[128];
    snprintf(text, sizeof text, "dtrain %s%s--help lists the options", command->name,
             command->name[0] ? " " : "");
    return text;
}

static dt_status unknown_option(const struct dt_command *command, const char *word)
{
    char name[DT_CONFIG_NAME];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    struct dt_nearest nearest = dt_nearest_to(name);
    for (const struct dt_option *o = command->options; o && o->key.name; o++) {
        char known[DT_CONFIG_NAME];
        snprintf(known, sizeof known, "--%s", o->key.name);
        dt_nearest_offer(&nearest, known);
    }
    dt_nearest_offer(&nearest, "--help");
    return REJECT(command, "unknown option %s%s", name, dt_nearest_suggest(&nearest));
}

// Finds the option of `word`, --name[=value] or -o[value], and the value in the word, or NULL.
static const struct dt_option *find_option(const struct dt_command *command, const char *word,
                                           const char **value)
{
    size_t length = strcspn(word, "=");
    bool is_long = word[1] == '-';
    *value = is_long ? (word[length] ? word + length + 1 : NULL) : (word[2] ? word + 2 : NULL);
    for (const struct dt_option *o = command->options; o && o->key.name; o++)
        if (is_long ? strlen(o->key.name) == length - 2 &&
                          strncmp(o->key.name, word + 2, length - 2) == 0
                    : o->letter && o->letter == word[1])
            return o;
    return NULL;
}

// Parses the option at argv[*at] with its value, and advances *at.
static dt_status parse_option(struct dt_call *call, int argc, char **argv, int *at)
{
    const struct dt_command *command = call->command;
    const char *word = argv[(*at)++], *value;
    char problem[DT_CONFIG_PROBLEM], allowed[DT_CONFIG_ALLOWED];
    const struct dt_option *o = find_option(command, word, &value);
    if (!o)
        return unknown_option(command, word);
    call->given |= UINT64_C(1) << (o - command->options);
    if (o->key.type == DT_CONFIG_BOOL) {
        if (value)
            return REJECT(command, "--%s takes no value", o->key.name);
        value = "true";
    } else if (!value) {
        if (*at == argc)
            return REJECT(command, "--%s needs a value", o->key.name);
        value = argv[(*at)++];
    }
    if (dt_config_convert(&o->key, value, call->options, problem))
        return DT_OK;
    dt_config_allowed(&o->key, allowed);
    return REJECT(command, "--%s: %s (allowed: %s)", o->key.name, problem, allowed);
}

static dt_status check_complete(const struct dt_call *call)
{
    const struct dt_command *command = call->command;
    const char *first = call->n_words > 0 ? call->words[0] : "./";
    if (command == dt_commands[0] && (strchr(first, '=') || !strpbrk(first, "./")) &&
        !dt_file_exists(first)) { // not a file name either
        struct dt_nearest nearest = dt_nearest_to(first);
        for (int i = 1; dt_commands[i]; i++)
            dt_nearest_offer(&nearest, dt_commands[i]->name);
        return DT_FAIL(DT_USER, "dtrain CONFIG trains; dtrain --help lists the commands",
                       "%s is neither a command nor a configuration file%s", first,
                       dt_nearest_suggest(&nearest));
    }
    for (const struct dt_option *o = command->options; o && o->key.name; o++)
        if (o->key.required && !dt_call_given(call, o->key.name))
            return REJECT(command, "--%s is required: %s", o->key.name, o->key.help);
    if (call->n_words < command->min_words)
        return REJECT(command, "an argument is missing: dtrain %s%s%s", command->name,
                      command->name[0] ? " " : "", command->usage);
    if (call->n_words > command->max_words)
        return REJECT(command, "unexpected argument %s", call->words[command->max_words]);
    return DT_OK;
}

dt_status dt_call_parse(int argc, char **argv, struct dt_call *call)
{
    const struct dt_command *command = dt_commands[0];
    for (int i = 1; argc > 0 && dt_commands[i]; i++)
        if (strcmp(dt_commands[i]->name, argv[0]) == 0)
            command = dt_commands[i];
    *call = (struct dt_call){.command = command};
    DT_TRY(DT_NEW_BYTES(&call->options, command->options_size, "the options"));
    DT_TRY(DT_NEW(&call->words, argc + 1, "the command line"));
    for (const struct dt_option *o = command->options; o && o->key.name; o++)
        dt_config_set_default(&o->key, call->options);
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        call->help |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    if (call->help)
        return DT_OK;
    bool words_only = false;
    for (int at = command == dt_commands[0] ? 0 : 1; at < argc;) {
        if (words_only || argv[at][0] != '-' || !argv[at][1]) // "-" is a word
            call->words[call->n_words++] = argv[at++];
        else if (strcmp(argv[at], "--") == 0)
            words_only = true, at++;
        else
            DT_TRY(parse_option(call, argc, argv, &at));
    }
    return check_complete(call);
}

void dt_call_free(struct dt_call *call)
{
    free(call->options);
    free(call->words);
}

bool dt_call_given(const struct dt_call *call, const char *option)
{
    const struct dt_option *o = call->command->options;
    while (strcmp(o->key.name, option) != 0)
        o++;
    return call->given >> (o - call->command->options) & 1;
}

bool dt_call_communicates(const struct dt_call *call)
{
    bool together = call->command->communicates;
    for (const struct dt_option *o = call->command->options; o && o->key.name; o++)
        if (dt_call_given(call, o->key.name) && (o->communicates || o->alone))
            together = o->communicates;
    return together;
}
