// Creates, reopens and finishes a file of predictions.
#include "data/h5_predictions.h"

#include "base/file.h"
#include "data/h5_file.h"

#include <math.h>

static const char progress_name[] = "/.progress", key_name[] = "key";

static dt_status fail(const struct dt_prediction_file *file, const char *action)
{
    return dt_h5_fail(DT_MACHINE, action, file->path, NULL);
}

// Creates a dataset with early allocation, and its groups, and fills it immediately: rows without a
// segment keep the fill value, and a disk that is too small is noticed now.
static dt_status create_array(const struct dt_prediction_file *file, hid_t id, const char *path,
                              hid_t type, int n_dims, const hsize_t *dims, const float *fill,
                              int64_t *offset)
{
    hid_t space = H5Screate_simple(n_dims, dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    dt_status status = DT_OK;
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    if (fill)
        H5Pset_fill_value(plist, type, fill);
    H5Pset_fill_time(plist, H5D_FILL_TIME_ALLOC);
    H5Pset_obj_track_times(plist, false);
    H5Pset_create_intermediate_group(links, 1);
    hid_t array = H5Dcreate2(id, path, type, space, links, plist, H5P_DEFAULT);
    if (array < 0)
        status = fail(file, "create a dataset of");
    else
        *offset = (int64_t)H5Dget_offset(array);
    if (array >= 0)
        H5Dclose(array);
    H5Pclose(links);
    H5Pclose(plist);
    H5Sclose(space);
    return status;
}

static dt_status add_texts(const struct dt_prediction_file *file, hid_t id)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    dt_status status = DT_OK;
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    for (int i = 0; i < file->n_attributes && status == DT_OK; i++)
        status = dt_h5_put_attribute(file->path, id, file->attributes[i][0], type, 0,
                                     &file->attributes[i][1]);
    H5Tclose(type);
    return status;
}

static dt_status fill_file(struct dt_prediction_file *file, hid_t id)
{
    const hsize_t pieces[] = {(hsize_t)file->pieces};
    const float none = NAN;
    DT_TRY(create_array(file, id, progress_name, H5T_STD_U8LE, 1, pieces, NULL, &file->progress));
    for (int64_t i = 0; i < file->n; i++) {
        struct dt_prediction_array *array = &file->arrays[i];
        const hsize_t dims[] = {(hsize_t)array->rows, (hsize_t)array->width};
        DT_TRY(create_array(file, id, array->path, H5T_IEEE_F32LE, array->width > 0 ? 2 : 1, dims,
                            &none, &array->offset));
    }
    DT_TRY(add_texts(file, id));
    return dt_h5_put_attribute(file->path, id, key_name, H5T_STD_U64LE, 0, &file->key);
}

dt_status dt_prediction_create(struct dt_prediction_file *file)
{
    dt_h5_enter(NULL);
    hid_t access = dt_h5_access();
    hid_t id = H5Fcreate(file->path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    dt_status status = id < 0 ? fail(file, "create") : fill_file(file, id);
    status = dt_h5_finish(file->path, id, status);
    H5Pclose(access);
    dt_h5_leave();
    if (status == DT_OK)
        status = dt_fsync_file(file->path);
    if (status != DT_OK && id >= 0)
        dt_discard_tree(file->path);
    return status;
}

static bool read_key(hid_t id, uint64_t *key)
{
    bool found = H5Aexists(id, key_name) > 0;
    hid_t attribute = found ? H5Aopen(id, key_name, H5P_DEFAULT) : -1;
    hid_t type = attribute < 0 ? -1 : H5Aget_type(attribute);
    found = type >= 0 && H5Tequal(type, H5T_STD_U64LE) > 0 &&
            H5Aread(attribute, H5T_STD_U64LE, key) >= 0;
    if (type >= 0)
        H5Tclose(type);
    if (attribute >= 0)
        H5Aclose(attribute);
    return found;
}

static dt_status find_array(const struct dt_prediction_file *file, hid_t id, const char *path,
                            int64_t *offset)
{
    hid_t array = H5Dopen2(id, path, H5P_DEFAULT);
    haddr_t at = array < 0 ? HADDR_UNDEF : H5Dget_offset(array);
    if (array >= 0)
        H5Dclose(array);
    *offset = (int64_t)at;
    return at != HADDR_UNDEF ? DT_OK
                             : DT_FAIL(DT_USER, "remove it, or use --force",
                                       "%s is damaged: it has no %s", file->path, path);
}

static dt_status find_arrays(struct dt_prediction_file *file, hid_t id)
{
    DT_TRY(find_array(file, id, progress_name, &file->progress));
    for (int64_t i = 0; i < file->n; i++)
        DT_TRY(find_array(file, id, file->arrays[i].path, &file->arrays[i].offset));
    return DT_OK;
}

dt_status dt_prediction_reopen(struct dt_prediction_file *file, bool *found)
{
    uint64_t key = 0;
    dt_status status = DT_OK;
    dt_h5_enter(file->path);
    hid_t access = dt_h5_access(), id = H5Fopen(file->path, H5F_ACC_RDONLY, access);
    *found = id >= 0 && read_key(id, &key) && H5Lexists(id, progress_name, H5P_DEFAULT) > 0;
    if (*found && key != file->key)
        status = DT_FAIL(DT_USER, "remove it, give another name, or use --force",
                         "%s holds part of other predictions: of other weights, other data or with "
                         "other options",
                         file->path);
    else if (*found)
        status = find_arrays(file, id);
    if (id >= 0)
        H5Fclose(id);
    H5Pclose(access);
    H5Eclear2(H5E_DEFAULT);
    dt_h5_leave();
    return status;
}

dt_status dt_prediction_finish(const struct dt_prediction_file *file, const char *path)
{
    dt_status status = DT_OK;
    dt_h5_enter(file->path);
    hid_t access = dt_h5_access(), id = H5Fopen(file->path, H5F_ACC_RDWR, access);
    if (id < 0)
        status = fail(file, "open");
    else if (H5Ldelete(id, progress_name, H5P_DEFAULT) < 0)
        status = fail(file, "write");
    status = dt_h5_finish(file->path, id, status);
    H5Pclose(access);
    dt_h5_leave();
    DT_TRY(status);
    DT_TRY(dt_fsync_file(file->path));
    if (rename(file->path, path) != 0)
        return DT_FAIL_ERRNO("rename", file->path);
    return dt_fsync_parent(path);
}
