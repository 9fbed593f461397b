"""The variables that accelerate's own launcher gives a script for a command line; with --options, its options instead."""

import json
import os
import sys

from accelerate.commands import launch
from accelerate.utils import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

parser = launch.launch_command_parser()
if sys.argv[1:] == ["--options"]:
    print(json.dumps([flag for action in parser._actions for flag in action.option_strings if "-" not in flag[2:]]))
    sys.exit()
args, config, from_config = launch._validate_launch_command(parser.parse_args(sys.argv[1:]))
if args.use_deepspeed and not args.cpu:
    fields = [*(config.deepspeed_config if config else ()), *(["mixed_precision"] if from_config else [])]
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    variables = prepare_deepspeed_cmd_env(args)[1]
elif (args.use_fsdp or args.use_megatron_lm or args.multi_gpu) and not args.cpu:
    variables = prepare_multi_gpu_env(args)
else:
    variables = prepare_simple_launcher_cmd_env(args)[1]
print(json.dumps({name: value for name, value in variables.items() if os.environ.get(name) != value}))
