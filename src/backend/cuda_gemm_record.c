// The algorithms of GEMM shapes as JSON: what a run's folder keeps, so that a resumed run uses the
// same ones. An algorithm is cuBLASLt's opaque structure, which cublasLt.h allows to be kept for
// the same version of the library, in hexadecimal; its named settings are written beside it, in
// plain text, and must still agree when it is read back.
#include "backend/cuda_gemm.h"

#include "base/json.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char source[] = "GEMM algorithms";

enum { HEX = 2 * sizeof(cublasLtMatmulAlgo_t) };

static const struct setting {
    const char *name;
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    size_t size;
} settings[] = {
    {"id", CUBLASLT_ALGO_CONFIG_ID, 4},
    {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {"split_k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {"option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {"inner_shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {"cluster_shape", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

// A setting that this algorithm does not have is -1.
static int64_t setting_of(const struct dt_cuda_gemm *gemm, const cublasLtMatmulAlgo_t *config,
                          const struct setting *setting)
{
    uint32_t whole = 0;
    uint16_t half = 0;
    void *value = setting->size == sizeof half ? (void *)&half : (void *)&whole;
    size_t written = 0;
    if (gemm->lt.MatmulAlgoConfigGetAttribute(config, setting->attribute, value, setting->size,
                                              &written) != CUBLAS_STATUS_SUCCESS)
        return -1;
    return setting->size == sizeof half ? (int64_t)half : (int64_t)whole;
}

static void to_hex(const cublasLtMatmulAlgo_t *config, char text[HEX + 1])
{
    const unsigned char *byte = (const unsigned char *)config;
    for (size_t i = 0; i < sizeof *config; i++)
        snprintf(text + 2 * i, 3, "%02x", byte[i]);
}

static bool from_hex(const char *text, cublasLtMatmulAlgo_t *config)
{
    unsigned char *byte = (unsigned char *)config;
    if (strlen(text) != HEX || strspn(text, "0123456789abcdef") != HEX)
        return false;
    for (size_t i = 0; i < sizeof *config; i++) {
        char two[3] = {text[2 * i], text[2 * i + 1], '\0'};
        byte[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return true;
}

// ---- names of shapes

void dt_gemm_key_text(const struct dt_gemm_key *key, char text[DT_GEMM_KEY_TEXT])
{
    char batch[96] = "";
    if (key->batch > 1)
        snprintf(batch, sizeof batch, " batch %lld steps %lld %lld %lld", (long long)key->batch,
                 (long long)key->a_step, (long long)key->b_step, (long long)key->c_step);
    snprintf(text, DT_GEMM_KEY_TEXT,
             "%s -> %s %c%c m%lld n%lld k%lld ld %lld %lld %lld align %d %d %d%s%s",
             dt_dtype_name(key->type), dt_dtype_name(key->c_type), key->trans_a ? 't' : 'n',
             key->trans_b ? 't' : 'n', (long long)key->m, (long long)key->n, (long long)key->k,
             (long long)key->lda, (long long)key->ldb, (long long)key->ldc, key->align_a,
             key->align_b, key->align_c, key->accumulate ? " accumulate" : "", batch);
}

// ---- what the record was made on

static void capability(const struct dt_device *device, char text[24])
{
    snprintf(text, 24, "%d.%d", device->major, device->minor);
}

static dt_status check_text(const cJSON *record, const char *field, const char *here)
{
    const char *there;
    DT_TRY(dt_json_string(source, record, field, &there));
    if (strcmp(there, here) != 0)
        return DT_FAIL(DT_USER, NULL, "%s: %s was %s when they were chosen, but is %s here", source,
                       field, there, here);
    return DT_OK;
}

static dt_status check_number(const cJSON *record, const char *field, int64_t here)
{
    int64_t there;
    DT_TRY(dt_json_int(source, record, field, 0, DT_JSON_INT_MAX, &there));
    if (there != here)
        return DT_FAIL(DT_USER, NULL, "%s: %s was %lld when they were chosen, but is %lld here",
                       source, field, (long long)there, (long long)here);
    return DT_OK;
}

static dt_status check_made_here(const struct dt_cuda_gemm *gemm, const cJSON *record)
{
    const struct dt_device *device = gemm->device;
    char here[24];
    capability(device, here);
    DT_TRY(check_text(record, "device", device->name));
    DT_TRY(check_text(record, "capability", here));
    DT_TRY(check_number(record, "multiprocessors", device->multiprocessors));
    DT_TRY(check_number(record, "cublaslt", (int64_t)gemm->lt.GetVersion()));
    if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(record, "gemm")))
        return dt_json_reject(source, record, "gemm", "an object");
    return DT_OK;
}

dt_status dt_gemm_record_set(struct dt_cuda_gemm *gemm, const char *text)
{
    cJSON *record = NULL;
    cJSON_Delete(gemm->record);
    gemm->record = NULL;
    if (!text)
        return DT_OK;
    dt_status status = dt_json_parse(source, text, (int64_t)strlen(text), &record);
    if (status == DT_OK)
        status = check_made_here(gemm, record);
    if (status == DT_OK) {
        gemm->record = record;
        return DT_OK;
    }
    dt_warn("%s; ignoring the record of algorithms", dt_error_current()->message);
    dt_error_clear();
    cJSON_Delete(record);
    return DT_OK;
}

// ---- one algorithm

static dt_status read_algorithm(const struct dt_cuda_gemm *gemm, const cJSON *entry,
                                struct dt_gemm_algorithm *algorithm)
{
    const char *hex;
    *algorithm = (struct dt_gemm_algorithm){.chosen = true};
    DT_TRY(dt_json_string(source, entry, "algorithm", &hex));
    if (!from_hex(hex, &algorithm->config))
        return dt_json_reject(source, entry, "algorithm", "%d hexadecimal digits", (int)HEX);
    for (int i = 0; i < SETTINGS; i++) {
        int64_t value;
        DT_TRY(dt_json_int(source, entry, settings[i].name, -1, UINT32_MAX, &value));
        if (value != setting_of(gemm, &algorithm->config, &settings[i]))
            return dt_json_reject(source, entry, settings[i].name, "that of the algorithm");
    }
    return dt_json_double(source, entry, "microseconds", 0.0, 1e12, &algorithm->microseconds);
}

dt_status dt_gemm_record_read(const struct dt_cuda_gemm *gemm, const struct dt_gemm_key *key,
                              struct dt_gemm_algorithm *algorithm, bool *found)
{
    char text[DT_GEMM_KEY_TEXT];
    dt_gemm_key_text(key, text);
    const cJSON *shapes = cJSON_GetObjectItemCaseSensitive(gemm->record, "gemm");
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(shapes, text);
    *found = entry;
    return entry ? read_algorithm(gemm, entry, algorithm) : DT_OK;
}

static bool add_algorithm(const struct dt_cuda_gemm *gemm, const struct dt_gemm_shape *shape,
                          cJSON *shapes)
{
    const struct dt_gemm_algorithm *algorithm = &shape->algorithm;
    char key[DT_GEMM_KEY_TEXT], hex[HEX + 1];
    dt_gemm_key_text(&shape->key, key);
    to_hex(&algorithm->config, hex);
    cJSON *entry = cJSON_AddObjectToObject(shapes, key);
    bool ok = entry && cJSON_AddStringToObject(entry, "algorithm", hex);
    for (int i = 0; i < SETTINGS && ok; i++)
        ok = dt_json_add_int(entry, settings[i].name,
                             setting_of(gemm, &algorithm->config, &settings[i]));
    return ok && dt_json_add_double(entry, "microseconds", algorithm->microseconds);
}

static bool fill(const struct dt_cuda_gemm *gemm, struct dt_gemm_shape *const *shapes, cJSON *root)
{
    const struct dt_device *device = gemm->device;
    char here[24];
    capability(device, here);
    bool ok = cJSON_AddStringToObject(root, "device", device->name) &&
              cJSON_AddStringToObject(root, "capability", here) &&
              dt_json_add_int(root, "multiprocessors", device->multiprocessors) &&
              dt_json_add_int(root, "cublaslt", (int64_t)gemm->lt.GetVersion());
    cJSON *object = ok ? cJSON_AddObjectToObject(root, "gemm") : NULL;
    ok = object;
    for (int i = 0; i < gemm->n_shapes && ok; i++)
        ok = add_algorithm(gemm, shapes[i], object);
    return ok;
}

dt_status dt_gemm_record_write(const struct dt_cuda_gemm *gemm, struct dt_gemm_shape *const *shapes,
                               char **text)
{
    cJSON *root = cJSON_CreateObject();
    *text = root && fill(gemm, shapes, root) ? dt_json_text(root) : NULL;
    cJSON_Delete(root);
    return *text ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the record of algorithms");
}
