// A subcommand of dtrain is a constant literal with a row for each option; cmd.c lists them.
// Dispatch, parsing, --help, shell completion and the man page all come from these tables.
#pragma once

#include "comm/comm.h"
#include "job/job.h"

#include <stdio.h>

struct dt_option {
    struct dt_config_key key; // name without dashes, and the field of the command's options
    char letter;              // short form: 'o' for -o; or 0
    const char *argument;     // the value's name in help; NULL: by its type
    const char *modes;        // modes of `dtrain bench` that have it ("ops|step"); NULL: all
    bool communicates;        // makes the command collective
    bool alone;               // makes rank 0 alone run the command
};

// The key of an option, --field, in a command's `struct options`.
#define DT_OPTION(kind, field, ...)                                                                \
    .key = DT_CONFIG_##kind(struct options, field, #field, __VA_ARGS__)

// A command line, parsed.
struct dt_call {
    const struct dt_command *command;
    bool help;      // --help: nothing else is checked
    void *options;  // the command's struct; free with dt_call_free
    uint64_t given; // a bit per row of the command's options
    char **words;   // the words that are not options, in order
    int n_words;
};

struct dt_command {
    const char *name;  // "": training, which needs no word
    const char *usage; // the text after the name: "CONFIG [section.key=value …]"
    const char *help;  // one line
    const char *about; // paragraphs for --help and the man page, or NULL
    int min_words, max_words;
    bool configured;   // the words are CONFIG and section.key=value
    bool communicates; // collective; otherwise rank 0 alone runs it, without a communicator
    const struct dt_option *options; // ends with a row without name; NULL: none
    size_t options_size;
    dt_status (*run)(struct dt_comm *comm, const struct dt_call *call);
};
extern const struct dt_command *const dt_commands[]; // training first; ends with NULL

// argv: without the program's name. An error names the command and, for an unknown option, the
// nearest known one.
dt_status dt_call_parse(int argc, char **argv, struct dt_call *call);
void dt_call_free(struct dt_call *call);
bool dt_call_given(const struct dt_call *call, const char *option);
// Whether the command or a given option makes it collective.
bool dt_call_communicates(const struct dt_call *call);

// Print the list of commands, and the help of one command (training: with all keys).
void dt_print_commands(FILE *out);
void dt_print_help(const struct dt_command *command, FILE *out);

// Reports an error that every rank has: rank 0 prints it once and notes it in the run's folder.
// dt_report_die reports an error of this rank alone and ends the job.
void dt_report(dt_status status);
void dt_report_die(const struct dt_error *error);
void dt_report_set_comm(struct dt_comm *comm); // of the process; NULL: none, or closed

struct dt_train_options {
    bool check, all, version, run_folder, propose;
    const char *device; // for `propose`; NULL: this one
};
// Finds the model that RUN names: the newest checkpoint of a run's folder, else the folder itself,
// verified if it is a checkpoint.
dt_status dt_cmd_find_model(const char *path, char dir[DT_PATH]);
// `dtrain --check`: prints the keys that were set (all: every key), data, memory plan, batch
// arithmetic and duration to stdout.
dt_status dt_cmd_print_plan(const struct dt_job *job, bool all);
// `dtrain --check --propose`: prints the largest micro-batch and window for a device
// (train/propose.h), and sizes of the model that waste tensor cores, to stdout.
dt_status dt_cmd_print_proposal(const struct dt_job *job, const char *device);
