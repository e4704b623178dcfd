/* Files that people name. */
#ifndef BASE_OPEN_H
#define BASE_OPEN_H

/*
 * A file with a secret or a setting, for reading: a descriptor, or -errno. As open(2), but a FIFO (a shell's
 * "<(command)") is waited for until somebody has written to it, and not for ever: -ENODATA after five seconds. Any
 * thread.
 */
int open_setting(const char *path);

#endif
