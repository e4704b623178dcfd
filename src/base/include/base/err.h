/* Inside Penstock a function returns 0 or a count >= 0, or -errno. These name the errno. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

/* "ENOENT" for ENOENT or -ENOENT; "E?" for a number without a name. Static storage. */
const char *err_name(int err);
/* "no such file or directory", for people; static or thread-local storage. */
const char *err_text(int err);

#endif
