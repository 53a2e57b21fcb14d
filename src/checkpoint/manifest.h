// A checkpoint's MANIFEST: one line per file, "HASH SIZE NAME", where HASH is its xxh64 in 16
// lower-case hex digits, as `xxhsum -H64` prints it. Private to src/checkpoint and to
// libdtrain_step.
#pragma once

#include "base/error.h"
#include "base/problems.h"

#include <stdint.h>

enum { DT_MANIFEST_NAME = 64 }; // bytes of a file's name, including the final zero

struct dt_manifest_file {
    char name[DT_MANIFEST_NAME];
    int64_t size;
    uint64_t hash;
};

struct dt_manifest {
    int n;
    struct dt_manifest_file *files;
};

void dt_manifest_free(struct dt_manifest *manifest);
const struct dt_manifest_file *dt_manifest_find(const struct dt_manifest *manifest,
                                                const char *name); // or NULL
dt_status dt_manifest_add(struct dt_manifest *manifest, const char *name, int64_t size,
                          uint64_t hash);
// Writes and syncs folder/name, which must not exist, and lists it.
dt_status dt_manifest_put(struct dt_manifest *manifest, const char *folder, const char *name,
                          const char *data, int64_t size);
// Writes and syncs folder/MANIFEST.
dt_status dt_manifest_write(const struct dt_manifest *manifest, const char *folder);
// Reads a MANIFEST and checks its syntax (names without folders, no duplicates), but not the files.
dt_status dt_manifest_read(const char *folder, struct dt_manifest *manifest);
// Adds a problem if the file is missing, or its size or hash differs. DT_MACHINE if it cannot be
// read.
dt_status dt_manifest_check(const char *folder, const struct dt_manifest_file *file,
                            struct dt_problems *problems);
// Verifies the files with these names (NULL-terminated) in a folder with a MANIFEST; a folder
// without one passes. DT_USER naming each file that is damaged, or that only the folder or only the
// MANIFEST has. A file that neither has passes: its reader reports it.
dt_status dt_manifest_verify(const char *path, const char *const *names);
