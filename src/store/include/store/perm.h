/* POSIX permission checks, pure: what a caller may do with an object of these attributes. */
#ifndef STORE_PERM_H
#define STORE_PERM_H

#include "store/types.h"

bool pst_cred_in_group(const struct pst_cred *cred, uint32_t gid);
/* want: R_OK | W_OK | X_OK bits. 0 or -EACCES. uid 0 may all, but execute only where some execute bit is set. */
int pst_perm_access(const struct pst_cred *cred, const struct pst_attr *a, int want);
/* May cred remove (or rename away) an entry whose object is `child` from `dir`? W_OK | X_OK and the sticky rule. */
int pst_perm_remove(const struct pst_cred *cred, const struct pst_attr *dir, const struct pst_attr *child);
/* The bits of a mode that must not outlive a change of the file's data or owner (POSIX chown, write): set-id. */
uint32_t pst_perm_setid(uint32_t mode);
/*
 * May cred make this setattr? 0, -EPERM, or -EACCES. *ret_mode_clear: mode bits to clear with it (S_ISUID, S_ISGID on
 * chown, on write by others, on chmod outside the group), as POSIX chown, chmod and write say.
 */
int pst_perm_setattr(const struct pst_cred *cred, const struct pst_attr *a, uint32_t mask, const struct pst_attr *in,
                     uint32_t *ret_mode_clear);
/* 0 or -EINVAL / -ENAMETOOLONG: a name in a directory: not empty, not "." or "..", no '/', at most PST_NAME_MAX. */
int pst_name_check(const char *name);
/* 0 or -EINVAL: the label of a pool or container. */
int pst_label_check(const char *label);

#endif
