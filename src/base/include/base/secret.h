/* Files with secrets: tokens and keys. One place for what is asked of them, and for the words of a refusal. */
#ifndef BASE_SECRET_H
#define BASE_SECRET_H

#include <stddef.h>
#include <stdint.h>

#define SECRET_TOKEN_MIN 16u  /* characters of a token: fewer are guessed */
#define SECRET_TOKEN_MAX 512u

/*
 * All bytes of a file that nobody but its owner may read; a FIFO (open_setting) is waited for, five seconds for each
 * piece. Returns how many, or -errno and a line for people in err, which begins with `what` ("key file") and the path.
 * A file with more than `size` bytes, or none, is refused. Any thread. The caller wipes ret, also after an error.
 */
int64_t secret_bytes(const char *what, const char *path, void *ret, size_t size, char *err, size_t err_size);
/*
 * The first line of such a file, without its end (LF or CR LF), which the last one needs not have: a token of
 * SECRET_TOKEN_MIN to SECRET_TOKEN_MAX characters, none of them a control character, and no blank at an end of it.
 * Returns its length or -errno. ret has it with a NUL.
 */
int secret_token(const char *path, char ret[SECRET_TOKEN_MAX + 1], char *err, size_t err_size);
/*
 * The same for who shows a token that was handed to him: others may read the file, as container platforms make them
 * (0444, 0640), but not write it.
 */
int secret_token_to_show(const char *path, char ret[SECRET_TOKEN_MAX + 1], char *err, size_t err_size);

#endif
