#include "store/perm.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

bool pst_cred_in_group(const struct pst_cred *cred, uint32_t gid)
{
    if (cred->gid == gid)
        return true;
    for (uint32_t i = 0; i < cred->ngroups && i < PST_GROUPS_MAX; i++)
        if (cred->groups[i] == gid)
            return true;
    return false;
}

int pst_perm_access(const struct pst_cred *cred, const struct pst_attr *a, int want)
{
    uint32_t bits;

    if (!cred)
        return 0;
    if (cred->uid == 0)
        return (want & X_OK) && !S_ISDIR(a->mode) && !(a->mode & 0111) ? -EACCES : 0;
    if (cred->uid == a->uid)
        bits = a->mode >> 6;
    else if (pst_cred_in_group(cred, a->gid))
        bits = a->mode >> 3;
    else
        bits = a->mode;
    return ((uint32_t)want & 7 & ~bits) ? -EACCES : 0;
}

int pst_perm_remove(const struct pst_cred *cred, const struct pst_attr *dir, const struct pst_attr *child)
{
    int r = pst_perm_access(cred, dir, W_OK | X_OK);
    if (r || !cred || cred->uid == 0)
        return r;
    if ((dir->mode & S_ISVTX) && cred->uid != dir->uid && cred->uid != child->uid)
        return -EPERM;
    return 0;
}

uint32_t pst_perm_setid(uint32_t mode)
{
    /* S_ISGID without group execute is not a set-id bit but mandatory locking: it stays. */
    return S_ISDIR(mode) ? 0 : S_ISUID | ((mode & S_IXGRP) ? S_ISGID : 0u);
}

int pst_perm_setattr(const struct pst_cred *cred, const struct pst_attr *a, uint32_t mask, const struct pst_attr *in,
                     uint32_t *ret_mode_clear)
{
    bool owner = !cred || cred->uid == 0 || cred->uid == a->uid, root = !cred || cred->uid == 0;
    uint32_t clear = 0;

    if ((mask & PST_SET_CTIME) && cred)
        return -EPERM;
    if ((mask & PST_SET_MODE) && !owner)
        return -EPERM;
    if ((mask & PST_SET_MODE) && !root && !S_ISDIR(a->mode) && !pst_cred_in_group(cred, a->gid))
        clear |= S_ISGID;
    if ((mask & PST_SET_UID) && !root && (!owner || in->uid != a->uid))
        return -EPERM;
    if ((mask & PST_SET_GID) && !root && (!owner || (in->gid != a->gid && !pst_cred_in_group(cred, in->gid))))
        return -EPERM;
    if ((mask & (PST_SET_UID | PST_SET_GID)) && cred)
        clear |= pst_perm_setid(a->mode);
    if ((mask & PST_SET_SIZE) && pst_perm_access(cred, a, W_OK))
        return -EACCES;
    if ((mask & PST_SET_SIZE) && !root)
        clear |= pst_perm_setid(a->mode);
    if ((mask & PST_SET_NO_SETID) && !owner && pst_perm_access(cred, a, W_OK))
        return -EACCES;
    if (mask & PST_SET_NO_SETID)
        clear |= pst_perm_setid(a->mode);
    if ((mask & (PST_SET_ATIME | PST_SET_MTIME)) && !owner)
        return -EPERM;
    if ((mask & (PST_SET_ATIME_NOW | PST_SET_MTIME_NOW)) && !owner && pst_perm_access(cred, a, W_OK))
        return -EACCES;
    *ret_mode_clear = clear;
    return 0;
}

int pst_name_check(const char *name)
{
    size_t n = strnlen(name, PST_NAME_MAX + 1);
    if (n > PST_NAME_MAX)
        return -ENAMETOOLONG;
    if (n == 0 || !strcmp(name, ".") || !strcmp(name, "..") || memchr(name, '/', n))
        return -EINVAL;
    return 0;
}

int pst_label_check(const char *label)
{
    size_t n = strnlen(label, PST_LABEL_MAX + 1);
    if (n == 0 || n > PST_LABEL_MAX || label[0] == '.')
        return -EINVAL;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)label[i]) && !strchr("._-", label[i]))
            return -EINVAL;
    return 0;
}
