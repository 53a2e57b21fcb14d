// logits_tool MODEL_DIR IDS.safetensors LOGITS.safetensors: computes the logits [B, T, vocab_size]
// of "ids" [B, T] (fp32 whole numbers) in fp32 with the weights of a Hugging Face directory. It
// runs on the CPU, whose memory the host can read.
#include "golden.h"
#include "model/hf.h"

#include <stdio.h>
#include <stdlib.h>

// Reads the tensor "ids" and its shape.
static int32_t *read_ids(const char *path, int64_t shape[2])
{
    struct dt_safetensors *file;
    golden_must(dt_safetensors_open(path, &file));
    const struct dt_safetensor *tensor = dt_safetensors_find(file, "ids");
    if (!tensor || tensor->n_dims != 2)
        golden_must(DT_FAIL(DT_USER, NULL, "%s: no tensor ids [B, T]", path));
    float *values = malloc((size_t)tensor->count * sizeof *values);
    int32_t *ids = malloc((size_t)tensor->count * sizeof *ids);
    golden_must(dt_safetensors_read_f32(file, tensor, 0, tensor->count, values));
    for (int64_t i = 0; i < tensor->count; i++)
        ids[i] = (int32_t)values[i];
    memcpy(shape, tensor->shape, 2 * sizeof *shape);
    free(values);
    dt_safetensors_close(file);
    return ids;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fputs("logits_tool MODEL_DIR IDS.safetensors LOGITS.safetensors\n", stderr);
        return 2;
    }
    struct dt_backend backend;
    int64_t shape[2];
    golden_must(dt_backend_open("cpu", 0, 0, &backend));
    int32_t *ids = read_ids(argv[2], shape);
    struct dt_model_config config = {.pad_vocab_multiple = 8, .storage = DT_F32};
    struct dt_model_shape largest = {.sequences = shape[0], .length = shape[1]};
    struct dt_model *model;
    golden_must(dt_hf_read_config(argv[1], &config));
    golden_must(dt_model_config_check(&config));
    golden_must(dt_model_create(&backend, &config, &largest, &model));
    golden_must(dt_hf_read_weights(argv[1], false, dt_model_params(model), config.tie_embeddings,
                                   dt_model_weights(model)));
    golden_must(dt_model_refresh(model, NULL));
    int64_t rows = shape[0] * shape[1], vocab = dt_model_config(model)->vocab_size;
    float *logits = calloc((size_t)(rows * vocab), sizeof *logits);
    struct dt_pass pass = {.input = {.sequences = shape[0], .length = shape[1]}};
    int tokens;
    golden_must(dt_model_token_array(model, &tokens));
    pass.input.arrays[tokens] = ids;
    golden_must(dt_model_forward(model, &pass));
    golden_must(dt_model_logits(model, &pass, &(struct dt_view){.data = logits}));
    struct dt_safetensors_entry entry = {"logits", DT_F32, 3, {shape[0], shape[1], vocab}};
    struct dt_safetensors_writer *writer;
    golden_must(dt_safetensors_create(argv[3], &entry, 1, NULL, 0, &writer));
    golden_must(dt_safetensors_write(writer, logits, rows * vocab * 4));
    golden_must(dt_safetensors_finish(writer, NULL, NULL));
    dt_model_destroy(model);
    dt_backend_close(&backend);
    free(logits);
    free(ids);
    return 0;
}
