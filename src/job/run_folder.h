// The folder of a run holds its lock, state.json and the resolved configuration. Only rank 0 uses
// it, except for the note of an abrupt end.
#pragma once

#include "base/config.h"
#include "base/file.h"

struct dt_run_folder {
    char path[DT_PATH];
    char checkpoints[DT_PATH]; // path/checkpoints
    int lock;                  // descriptor of path/.lock, -1 where not held
    char previous[160];        // the process that held it before, "": none
};

struct dt_settings;
// run.dir, or runs/ and run.name.
dt_status dt_run_folder_path(const struct dt_settings *settings, char path[DT_PATH]);
// Creates the folder, locks it (waits `wait_s` seconds for another job's, then DT_USER naming
// the holder) and checks that files can be written there.
dt_status dt_run_folder_open(const char *path, double wait_s, struct dt_run_folder *folder);
void dt_run_folder_close(struct dt_run_folder *folder);
// Says how the previous job in this folder ended, where that was no clean end.
void dt_run_folder_explain(const struct dt_run_folder *folder);
// state: "running", "stopped", "complete"; "failed" is written by dt_run_folder_note_end.
dt_status dt_run_folder_state(const struct dt_run_folder *folder, const char *state, int64_t step,
                              const char *reason);

// An abrupt end leaves its reason in state.json: whichever rank has the last words writes it, from
// any thread. Between watch(path), when state.json says "running", and watch(NULL), once it says
// something else, each rank keeps the path and the last step that was done.
void dt_run_folder_watch(const char *path);
void dt_run_folder_step(int64_t step);
// What state.json says of the lowest validation loss; step 0: nothing.
void dt_run_folder_best(int64_t step, double loss);
// Returns true to the first rank of this host that claims the last words, false to all others.
// (Where a cut network parts the hosts, what a rank on the other side says may reach nobody.)
bool dt_run_folder_claim_end(void);
// "failed" with that step and the reason, once; nothing where no run is watched. Overwrites the
// file in place where no other can be written (a full disk), and says nothing of its own failures.
void dt_run_folder_note_end(const char *reason);

dt_status dt_run_folder_config(const struct dt_run_folder *folder, const struct dt_config *config);
// Logs what has changed since the configuration in the folder was written. Keys that the
// checkpoint `resume` decides cannot.
void dt_run_folder_changes(const struct dt_run_folder *folder, const struct dt_config *config,
                           const char *resume);
// For a run that has nothing left to train: DT_USER where a key that decides what is trained has
// changed since, naming all that have.
dt_status dt_run_folder_check_trained(const struct dt_run_folder *folder,
                                      const struct dt_config *config, const char *resume);
