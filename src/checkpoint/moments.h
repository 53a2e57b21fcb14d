// Adam's moments in a checkpoint's optimizer files. A file holds any ranges of any tensors;
// together they must cover every element of every tensor once. Private to the checkpoint room.
#pragma once

#include "base/problems.h"
#include "checkpoint/manifest.h"
#include "model/params.h"

// Writes all moments as file 1 of 1 and lists it.
dt_status dt_moments_write(struct dt_manifest *manifest, const char *folder,
                           const struct dt_params *params, const float *m, const float *v);
// Adds what is wrong with the set of optimizer files listed: none, not all of one set.
void dt_moments_check_names(const struct dt_manifest *manifest, struct dt_problems *problems);
// Reads all of a folder's moments; padding becomes 0.
dt_status dt_moments_read(const struct dt_manifest *manifest, const char *folder,
                          const struct dt_params *params, float *m, float *v);
