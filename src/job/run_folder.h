// The folder of a run holds its lock, state.json and the resolved configuration. Only rank 0 uses
// it, except to note an abrupt end.
#pragma once

#include "base/config.h"
#include "base/file.h"

struct dt_run_folder {
    char path[DT_PATH];
    char checkpoints[DT_PATH]; // path/checkpoints
    int lock;                  // descriptor of path/.lock; -1: not held
    char previous[160];        // the process that held it before; "": none
};

struct dt_settings;
// run.dir, or runs/ followed by run.name.
dt_status dt_run_folder_path(const struct dt_settings *settings, char path[DT_PATH]);
// Creates the folder, locks it (waits at most `wait_s` seconds for another job, then DT_USER naming
// the holder) and checks that it is writable.
dt_status dt_run_folder_open(const char *path, double wait_s, struct dt_run_folder *folder);
void dt_run_folder_close(struct dt_run_folder *folder);
// Reports how the previous job in this folder ended, unless it ended cleanly.
void dt_run_folder_explain(const struct dt_run_folder *folder);
// state: "running", "stopped", "complete"; "failed" is written by dt_run_folder_note_end.
dt_status dt_run_folder_state(const struct dt_run_folder *folder, const char *state, int64_t step,
                              const char *reason);

// The reason of an abrupt end goes to state.json; the rank that reports the end writes it, from any
// thread. For this each rank keeps the path and the last step from watch(path), when state.json
// says "running", to watch(NULL), when it says something else.
void dt_run_folder_watch(const char *path);
void dt_run_folder_step(int64_t step);
// The lowest validation loss, for state.json; step 0: none.
void dt_run_folder_best(int64_t step, double loss);
// True for the first rank of this host that claims to report the end, false for others. (If the
// network is cut, a report on another host may reach nobody.)
bool dt_run_folder_claim_end(void);
// Writes "failed", that step and the reason, once; a no-op if no run is watched. Overwrites the
// file in place if no new file can be written (full disk), and does not report its own failures.
void dt_run_folder_note_end(const char *reason);

dt_status dt_run_folder_config(const struct dt_run_folder *folder, const struct dt_config *config);
// Logs which keys have changed since the configuration in the folder was written. Keys that the
// checkpoint `resume` decides cannot change.
void dt_run_folder_changes(const struct dt_run_folder *folder, const struct dt_config *config,
                           const char *resume);
// For a run that has nothing left to train: DT_USER naming all keys that decide what is trained and
// have changed since.
dt_status dt_run_folder_check_trained(const struct dt_run_folder *folder,
                                      const struct dt_config *config, const char *resume);
