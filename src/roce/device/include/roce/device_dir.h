/* Directories that are this user's, and that nobody else may enter. */
#ifndef ROCE_DEVICE_DIR_H
#define ROCE_DEVICE_DIR_H

#include <stddef.h>

/* A descriptor (O_PATH), or -errno; -EPERM: it is another's, others may enter, or it is no directory. */
int private_dir_open(const char *dir);
/* The same, made if it is not there. */
int private_dir_make(const char *dir);
/*
 * In a directory of all users: uroce-UID, or if that is not ours alone uroce-UID.1 and so on, up to .9. For in a user
 * namespace this user has the number of another, whose directory may be there. ret_dir: the name that was tried last.
 * -ENAMETOOLONG: it has no room.
 */
int private_dir_in(const char *parent, char *ret_dir, size_t size);

#endif
