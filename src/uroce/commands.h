/* The commands of `uroce`: each gets what follows its name, prints its own errors, and returns the exit status. */
#ifndef UROCE_COMMANDS_H
#define UROCE_COMMANDS_H

int cmd_capture(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_holder(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_stat(int argc, char **argv);

/* Prints what is wrong and a hint at the help: returns 2. */
int usage_error(const char *command, const char *what);

#endif
