// Fills a model's weights from the host, wherever the device's memory lies.
#pragma once

#include "model/model.h"

// Writes weights [elements] fp32 in the order of the table.
typedef dt_status (*dt_weights_source)(void *context, const struct dt_params *params,
                                       float *weights);
// Masters and their bf16 copies; done when it returns.
dt_status dt_weights_load(const struct dt_backend *backend, struct dt_model *model,
                          dt_weights_source source, void *context);
