// `dtrain completion`: prints shell completion from the tables of subcommands, options and
// configuration keys.
#include "cmd/cmd.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = 1024 };

const struct dt_command dt_cmd_completion;

// The allowed values, "auto|cuda|cpu"; NULL: any text or number.
static const char *words_of(const struct dt_config_key *key)
{
    return key->type == DT_CONFIG_BOOL ? "true|false" : key->choices;
}

// Prints words separated by blanks, for both shells.
static void print_words(const char *words)
{
    for (; *words; words++)
        putchar(*words == '|' ? ' ' : *words);
}

// Prints one case of the shell function: the words that may follow `pattern`.
static void print_case(const char *pattern, const struct dt_config_key *key)
{
    const char *words = words_of(key);
    if (!words)
        return;
    printf("    %s) words=\"", pattern);
    print_words(words);
    printf("\" ;;\n");
}

static void print_options(const struct dt_command *command)
{
    for (const struct dt_option *o = command->options; o && o->key.name; o++)
        printf("--%s ", o->key.name);
    printf("--help ");
}

static void print_bash(void)
{
    char pattern[TEXT];
    // bash splits words at "=", so `name` is the word before the value.
    printf("# bash completion of dtrain: source <(dtrain completion bash)\n"
           "_dtrain() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local command=${COMP_WORDS[1]} name= words= keys=\n"
           "    [[ $cur == = ]] && name=$before cur=\n"
           "    [[ $before == = ]] && name=${COMP_WORDS[COMP_CWORD-2]}\n"
           "    [[ $before == -* ]] && name=$before\n"
           "    [[ $name == -* ]] && name=\"$command $name\"\n"
           "    case $name in\n");
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);)
        print_case(row.name, row.key);
    for (int i = 1; dt_commands[i]; i++)
        for (const struct dt_option *o = dt_commands[i]->options; o && o->key.name; o++)
            if (o->key.type == DT_CONFIG_ENUM) { // flags have no value
                snprintf(pattern, sizeof pattern, "\"%s --%s\"", dt_commands[i]->name, o->key.name);
                print_case(pattern, &o->key);
            }
    printf("    esac\n    keys=\"");
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);)
        printf("%s= ", row.name);
    printf("\"\n    [[ -n $words ]] || case $command in\n");
    for (int i = 1; dt_commands[i]; i++) {
        printf("    %s) words=\"", dt_commands[i]->name);
        print_options(dt_commands[i]);
        printf("%s%s\" ;;\n", dt_commands[i]->configured ? "$keys" : "",
               dt_commands[i] == &dt_cmd_completion ? "bash zsh" : "");
    }
    printf("    *) words=$keys ;;\n    esac\n    ((COMP_CWORD > 1)) || words=\"");
    for (int i = 1; dt_commands[i]; i++)
        printf("%s ", dt_commands[i]->name);
    print_options(dt_commands[0]);
    printf("$(compgen -f -X '!*.ini' -- \"$cur\")\"\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace 2>/dev/null\n"
           "}\n"
           "complete -o default -F _dtrain dtrain\n");
}

// ---- zsh

// Prints text for single quotes, with special characters escaped.
static void print_quoted(const char *text, const char *special)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(special, *text) ? "\\" : "", *text);
}

// Prints a specification of _arguments: '--name=[help]:name:(values)'. A value without choices
// completes to files, or to nothing if it is a number.
static void print_option(const struct dt_option *o)
{
    enum dt_config_type type = o->key.type;
    bool flag = type == DT_CONFIG_BOOL, number = type == DT_CONFIG_INT || type == DT_CONFIG_FLOAT;
    printf("            ");
    if (o->letter)
        printf("'(-%c --%s)'{-%c%s,--%s%s}'", o->letter, o->key.name, o->letter, flag ? "" : "+",
               o->key.name, flag ? "" : "=");
    else
        printf("'--%s%s", o->key.name, flag ? "" : "=");
    putchar('[');
    print_quoted(o->key.help, "[]\\");
    putchar(']');
    if (!flag) {
        printf(":%s:%s", o->key.name, o->key.choices ? "(" : number ? " " : "_files");
        if (o->key.choices)
            print_words(o->key.choices);
        fputs(o->key.choices ? ")" : "", stdout);
    }
    fputs("' \\\n", stdout);
}

static void print_keys(void)
{
    struct dt_config_row row = {0};
    printf("_dtrain_setting() {\n    local key=${PREFIX%%%%=*}\n    local -a keys\n"
           "    if compset -P '*='; then\n        case $key in\n");
    while (dt_config_next(&dt_settings_table, &row)) {
        const char *words = words_of(row.key);
        if (!words)
            continue;
        printf("        %s) _values value ", row.name);
        print_words(words);
        printf(" ;;\n");
    }
    printf("        *) _files ;;\n        esac\n        return\n    fi\n    keys=(\n");
    row = (struct dt_config_row){0};
    while (dt_config_next(&dt_settings_table, &row)) {
        printf("        '%s:", row.name);
        print_quoted(row.key->help, "\\");
        printf("'\n");
    }
    printf("    )\n    _describe -V setting keys -S =\n}\n");
}

static void print_zsh_case(const struct dt_command *command)
{
    static const char configured[] = "            '1:configuration:_files -g \"*.ini\"' \\\n"
                                     "            '*:setting:_dtrain_setting'";
    bool shells = command == &dt_cmd_completion;
    printf("    %s)\n        _arguments \\\n", command->name[0] ? command->name : "*");
    for (const struct dt_option *o = command->options; o && o->key.name; o++)
        print_option(o);
    printf("            '(-h --help)'{-h,--help}'[list the options]' \\\n%s\n        ;;\n",
           command->configured ? configured
           : shells            ? "            '1:shell:(bash zsh)'"
                               : "            '*:file:_files'");
}

static void print_zsh(void)
{
    printf(
        "#compdef dtrain\n"
        "# zsh completion of dtrain: source <(dtrain completion zsh), or keep it as _dtrain in a "
        "folder of $fpath\n");
    print_keys();
    printf("_dtrain() {\n    local -a commands\n    if ((CURRENT == 2)); then\n"
           "        commands=(\n");
    for (int i = 1; dt_commands[i]; i++) {
        printf("            '%s:", dt_commands[i]->name);
        print_quoted(dt_commands[i]->help, ":\\");
        printf("'\n");
    }
    printf("        )\n        _describe command commands\n    fi\n    case $words[2] in\n");
    for (int i = 1; dt_commands[i]; i++)
        print_zsh_case(dt_commands[i]);
    print_zsh_case(dt_commands[0]);
    printf("    esac\n}\n"
           "[[ $funcstack[1] == _dtrain ]] && _dtrain \"$@\" || compdef _dtrain dtrain\n");
}

static dt_status print_completion(struct dt_comm *comm, const struct dt_call *call)
{
    (void)comm;
    if (strcmp(call->words[0], "bash") == 0)
        print_bash();
    else if (strcmp(call->words[0], "zsh") == 0)
        print_zsh();
    else
        return DT_FAIL(DT_USER, "dtrain completion bash, or zsh", "no completion for %s",
                       call->words[0]);
    return DT_OK;
}

const struct dt_command dt_cmd_completion = {
    .name = "completion",
    .usage = "bash | zsh",
    .help = "print shell completion, as in: source <(dtrain completion bash)",
    .min_words = 1,
    .max_words = 1,
    .run = print_completion,
};
