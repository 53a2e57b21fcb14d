// MANIFEST of a checkpoint: size and xxh64 of each of its files. One line per file, "HASH SIZE
// NAME" with 16 lower-case hex digits, so that `xxhsum -H64` checks it by hand. Private to the
// checkpoint room and to libdtrain_step.
#pragma once

#include "base/error.h"
#include "base/problems.h"

#include <stdint.h>

enum { DT_MANIFEST_NAME = 64 }; // bytes of a file's name with its final zero

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
// Writes folder/name, synced, and lists it. The file must not be there yet.
dt_status dt_manifest_put(struct dt_manifest *manifest, const char *folder, const char *name,
                          const char *data, int64_t size);
// Writes folder/MANIFEST, synced.
dt_status dt_manifest_write(const struct dt_manifest *manifest, const char *folder);
// Reads and checks its form (names without folders, no duplicates); not the files.
dt_status dt_manifest_read(const char *folder, struct dt_manifest *manifest);
// Adds a problem where the file is missing, or has another size or hash. DT_MACHINE where it cannot
// be read.
dt_status dt_manifest_check(const char *folder, const struct dt_manifest_file *file,
                            struct dt_problems *problems);
// The files of these names, up to NULL, in a folder that has a MANIFEST; others pass. DT_USER
// naming each that is damaged, or in only one of the folder and its MANIFEST. One that is in
// neither passes: whoever opens it says what that means.
dt_status dt_manifest_verify(const char *path, const char *const *names);
