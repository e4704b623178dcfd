/*
 * The stages that a transferred byte must go through, each alone: processor time per GiB.
 *
 *   bench_stages FILE [size=MiB] [seconds=S]
 *
 * FILE has at least `size` MiB. crc: CRC32C of each 4 KiB block of memory that is not in the processor's caches;
 * cached_read: pread of 1 MiB out of the page cache; direct_read, direct_write: 1 MiB with O_DIRECT. Writes go over the
 * file's contents. Prints one JSON object.
 */
#include "bench_util.h"

#include "base/crc.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static uint64_t size = 64;
static double seconds = 0.3;
static uint8_t *mem; /* size MiB */
static volatile uint32_t sink;

static void crc(int fd, uint64_t at)
{
    (void)fd;
    for (uint64_t k = 0; k < MiB; k += 4096)
        sink += crc32c(0, mem + at + k, 4096);
}

static void do_read(int fd, uint64_t at)
{
    if (pread(fd, mem + at, MiB, (off_t)at) != (ssize_t)MiB)
        die("read", -errno, "");
}

static void do_write(int fd, uint64_t at)
{
    if (pwrite(fd, mem + at, MiB, (off_t)at) != (ssize_t)MiB)
        die("write", -errno, "");
}

static void stage(const char *name, void (*fn)(int fd, uint64_t at), int fd)
{
    uint64_t start, n = 0;
    double cpu;

    for (uint64_t at = 0; at < size; at += MiB)
        fn(fd, at);
    start = now_ns();
    cpu = process_cpu(0);
    do {
        fn(fd, n++ * MiB % size);
    } while ((double)(now_ns() - start) < seconds * 1e9);
    cpu = process_cpu(0) - cpu;
    printf("%s\"%s\": %.4f", fn == crc ? "{" : ", ", name, cpu * 1024 / (double)n);
}

int main(int argc, char **argv)
{
    const struct bench_arg args[] = {{"size", NULL, &size, NULL}, {"seconds", NULL, NULL, &seconds}, {0}};
    int fd, direct;

    bench_program = "bench_stages";
    if (argc < 2) {
        fprintf(stderr, "usage: bench_stages FILE [size=MiB] [seconds=S]\n");
        return 2;
    }
    bench_args(args, argc, argv, 2);
    size *= MiB;
    mem = size ? aligned_alloc(4096, size) : NULL;
    if (!mem)
        die("memory", -ENOMEM, "");
    memset(mem, 1, size);
    fd = open(argv[1], O_RDWR);
    direct = open(argv[1], O_RDWR | O_DIRECT);
    if (fd < 0)
        die(argv[1], -errno, "");
    stage("crc", crc, fd);
    stage("cached_read", do_read, fd);
    if (direct >= 0) {
        stage("direct_read", do_read, direct);
        stage("direct_write", do_write, direct);
    }
    printf("}\n");
    return 0;
}
