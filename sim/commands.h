/* The verbs of fsdp-plan.  Each takes the arguments after the verb (argv[0] stays the program) and
 * returns the exit status; @error is set when it is not 0 and there is something to say. */
#pragma once

#include <glib.h>

int command_search(int argc, char **argv, GError **error);
int command_estimate(int argc, char **argv, GError **error);
int command_explain(int argc, char **argv, GError **error);
int command_check(int argc, char **argv, GError **error);
int command_trace(int argc, char **argv, GError **error);
int command_export(int argc, char **argv, GError **error);
int command_backtest(int argc, char **argv, GError **error);
int command_model(int argc, char **argv, GError **error);
int command_topology(int argc, char **argv, GError **error);
