// Prints help and the man page from the tables of subcommands, options and configuration keys.
#include "base/text.h"
#include "cmd/cmd.h"

#include <stdio.h>
#include <string.h>

enum { OPTION_COLUMN = 24, COMMAND_COLUMN = 33, TEXT = 1024 };

static const char exit_codes[] = "0: success, or a clean stop on a signal; 2: arguments, "
                                 "configuration or data are wrong; 3: the "
                                 "machine failed (I/O, memory, device, communication).";
static const char sources[] =
    "section.key=value on the command line overrides DTRAIN_SECTION__KEY in the environment, which "
    "overrides the file, which overrides the default.";

static void print_item(FILE *out, int column, const char *name, const char *text)
{
    int at = fprintf(out, "  %s", name) - (int)strlen(name) + dt_text_width(name);
    if (at + 2 > column) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", column - at, "");
    dt_print_wrapped(out, column, column, text);
}

// "-o, --output DIR"
static const char *option_name(const struct dt_option *o, char text[TEXT])
{
    static const char *const arguments[] = {
        [DT_CONFIG_BOOL] = "",        [DT_CONFIG_INT] = " N",     [DT_CONFIG_FLOAT] = " X",
        [DT_CONFIG_STRING] = " TEXT", [DT_CONFIG_ENUM] = " WORD", [DT_CONFIG_ANY] = " TEXT"};
    char letter[8] = "";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(text, TEXT, "%s--%s%s%s", letter, o->key.name, o->argument ? " " : "",
             o->argument ? o->argument : arguments[o->key.type]);
    return text;
}

// "mamba: what it is (auto | cuda | cpu; default: auto)"
static const char *key_text(const struct dt_config_key *key, const char *kinds, char text[TEXT])
{
    char allowed[DT_CONFIG_ALLOWED] = "";
    bool standard = key->fallback[0] > ' ';
    if (key->type != DT_CONFIG_ANY && key->type != DT_CONFIG_STRING)
        dt_config_allowed(key, allowed);
    snprintf(text, TEXT, "%s%s%s", kinds, kinds[0] ? ": " : "", key->help);
    if (allowed[0] || standard || key->required)
        dt_append(text, TEXT, " (%s%s%s%s%s)", allowed,
                  allowed[0] && (standard || key->required) ? "; " : "",
                  key->required ? "required" : "", standard ? "default: " : "",
                  standard ? key->fallback : "");
    return text;
}

static const char *row_text(const struct dt_config_row *row, char text[TEXT])
{
    char kinds[DT_CONFIG_ALLOWED] = "";
    if (row->section->list == dt_model_keys)
        dt_model_field_kinds(row->key, kinds);
    return key_text(row->key, kinds, text);
}

static const char *option_text(const struct dt_option *o, char text[TEXT])
{
    return o->key.type == DT_CONFIG_BOOL ? o->key.help : key_text(&o->key, "", text);
}

static const char *usage_of(const struct dt_command *command, char text[TEXT])
{
    snprintf(text, TEXT, "dtrain%s%s%s%s", command->name[0] ? " " : "", command->name,
             command->usage[0] ? " " : "", command->usage);
    return text;
}

void dt_print_commands(FILE *out)
{
    char usage[TEXT];
    fputs("dtrain trains sequence models on many GPUs or CPUs.\n\n", out);
    for (int i = 0; dt_commands[i]; i++) {
        print_item(out, COMMAND_COLUMN, usage_of(dt_commands[i], usage), dt_commands[i]->help);
        if (i == 0)
            for (const struct dt_option *o = dt_commands[0]->options; o->key.name; o++) {
                snprintf(usage, sizeof usage, "dtrain --%s%s", o->key.name,
                         strcmp(o->key.name, "version") == 0 ? "" : " CONFIG …");
                print_item(out, COMMAND_COLUMN, usage, o->key.help);
            }
    }
    print_item(out, COMMAND_COLUMN, "dtrain [COMMAND] --help", "all keys, or a command's options");
}

void dt_print_help(const struct dt_command *command, FILE *out)
{
    char name[TEXT], text[TEXT];
    if (command == dt_commands[0]) {
        dt_print_commands(out);
        fputs("\nExit codes: ", out);
        dt_print_wrapped(out, 12, 0, exit_codes);
        fputs("\nConfiguration: ", out);
        dt_print_wrapped(out, 15, 0, sources);
        fputc('\n', out);
        for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);) {
            if (row.first)
                fprintf(out, "%s[%s]\n", row.index > 0 ? "\n" : "", row.section->name);
            print_item(out, OPTION_COLUMN, row.key->name, row_text(&row, text));
        }
        return;
    }
    fprintf(out, "usage: %s\n\n", usage_of(command, name));
    dt_print_wrapped(out, 0, 0, command->about ? command->about : command->help);
    if (command->options)
        fputc('\n', out);
    for (const struct dt_option *o = command->options; o && o->key.name; o++)
        print_item(out, OPTION_COLUMN, option_name(o, name), option_text(o, text));
}

// ---- man page

// Prints text as roff: escapes backslashes and hyphens, and no line begins with a control
// character.
static void roff(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++)
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    putchar('\n');
}

static void roff_item(const char *name, const char *text)
{
    fputs(".TP\n.B ", stdout);
    roff(name);
    roff(text);
}

static dt_status print_man(struct dt_comm *comm, const struct dt_call *call)
{
    char text[TEXT], name[TEXT];
    (void)comm, (void)call;
    printf(".TH DTRAIN 1 \"\" \"dtrain\" \"User Commands\"\n.SH NAME\ndtrain \\- train sequence "
           "models "
           "on many GPUs or CPUs\n.SH SYNOPSIS\n.nf\n");
    for (int i = 0; dt_commands[i]; i++)
        roff(usage_of(dt_commands[i], name));
    printf(".fi\n.SH COMMANDS\n");
    for (int i = 0; dt_commands[i]; i++) {
        fputs(".SS ", stdout);
        roff(usage_of(dt_commands[i], name));
        roff(dt_commands[i]->about ? dt_commands[i]->about : dt_commands[i]->help);
        for (const struct dt_option *o = dt_commands[i]->options; o && o->key.name; o++)
            roff_item(option_name(o, name), option_text(o, text));
    }
    printf(".SH CONFIGURATION\n");
    roff(sources);
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);) {
        if (row.first)
            printf(".SS [%s]\n", row.section->name);
        roff_item(row.name, row_text(&row, text));
    }
    printf(".SH EXIT STATUS\n");
    roff(exit_codes);
    return DT_OK;
}

const struct dt_command dt_cmd_man = {.name = "man",
                                      .usage = "",
                                      .help = "print the man page: dtrain man | man -l -",
                                      .run = print_man};
