// The subcommands, one row each.
#include "cmd/cmd.h"

extern const struct dt_command dt_cmd_train, dt_cmd_pack, dt_cmd_verify, dt_cmd_order, dt_cmd_eval,
    dt_cmd_predict, dt_cmd_export, dt_cmd_sample, dt_cmd_bench, dt_cmd_info, dt_cmd_completion,
    dt_cmd_man;

const struct dt_command *const dt_commands[] = {
    &dt_cmd_train,      &dt_cmd_pack,   &dt_cmd_verify, &dt_cmd_order, &dt_cmd_eval,
    &dt_cmd_predict,    &dt_cmd_sample, &dt_cmd_export, &dt_cmd_bench, &dt_cmd_info,
    &dt_cmd_completion, &dt_cmd_man,    NULL,
};
