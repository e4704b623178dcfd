/* The chunk record: codec and edits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "chunk.h"
#include "local.h"

#include <errno.h>
#include <string.h>

/* A map from a list of edits. */
struct edit {
    uint32_t first, n;
    uint64_t phys; /* 0: a hole */
    bool unwritten;
};

static struct chunk_map *build(const struct edit *edits, size_t nedits)
{
    struct chunk_map *m = NULL, *next = NULL;
    uint32_t crcs[64];

    for (size_t i = 0; i < nedits; i++) {
        struct chunk_run run = {.phys = edits[i].phys, .n = edits[i].n};
        for (uint32_t k = 0; k < edits[i].n; k++)
            crcs[k] = (uint32_t)(edits[i].phys + k) * 3;
        assert_int_equal(chunk_edit(m, edits[i].first, edits[i].n, &run, edits[i].phys ? 1 : 0,
                                    edits[i].unwritten ? NULL : crcs, NULL, NULL, &next),
                         0);
        chunk_unref(m);
        m = next;
    }
    m->version = 9;
    return m;
}

static void assert_ext(const struct chunk_map *m, uint32_t i, uint32_t first, uint32_t n, uint64_t phys)
{
    assert_true(i < m->nexts);
    assert_int_equal(m->exts[i].first, first);
    assert_int_equal(m->exts[i].n, n);
    assert_int_equal(m->exts[i].phys, phys);
    for (uint32_t k = 0; k < n && !m->exts[i].unwritten; k++)
        assert_int_equal(m->crcs[m->exts[i].crc_at + k], (uint32_t)(phys + k) * 3);
}

static void a_record_survives_encoding(void **state)
{
    struct edit edits[] = {{0, 4, 100, false}, {8, 2, 50, true}, {12, 3, 200, false}};
    struct chunk_map *m = build(edits, 3), *back = NULL;
    struct wbuf w = {0};
    (void)state;

    m->in_use = 61440;
    m->meta_len = 5;
    memcpy(m->meta, "hello", 5);
    chunk_encode(m, &w);
    assert_int_equal(chunk_decode(w.data, w.len, &back), 0);
    assert_int_equal(back->version, 9);
    assert_int_equal(back->in_use, 61440);
    assert_int_equal(back->meta_len, 5);
    assert_memory_equal(back->meta, "hello", 5);
    assert_int_equal(back->nexts, 3);
    assert_ext(back, 0, 0, 4, 100);
    assert_ext(back, 1, 8, 2, 50);
    assert_true(back->exts[1].unwritten);
    assert_ext(back, 2, 12, 3, 200);
    assert_int_equal(chunk_blocks(back), 9);
    chunk_unref(m);
    chunk_unref(back);
    wbuf_done(&w);
}

static void every_truncated_record_is_refused(void **state)
{
    struct edit edits[] = {{0, 4, 100, false}, {8, 2, 50, true}, {12, 3, 200, false}};
    struct chunk_map *m = build(edits, 3), *back = NULL;
    struct wbuf w = {0};
    (void)state;

    m->meta_len = 3;
    chunk_encode(m, &w);
    for (size_t n = 0; n < w.len; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, w.data, n);
        assert_int_equal(chunk_decode(copy, n, &back), -EBADMSG);
        free(copy);
    }
    wbuf_u8(&w, 0);
    assert_int_equal(chunk_decode(w.data, w.len, &back), -EBADMSG);
    assert_null(back);
    chunk_unref(m);
    wbuf_done(&w);
}

static void wrong_fields_are_refused(void **state)
{
    struct edit edits[] = {{0, 4, 100, false}, {8, 2, 50, false}};
    struct chunk_map *m = build(edits, 2), *back = NULL;
    struct wbuf w = {0};
    struct {
        size_t at;
        uint8_t value;
    } bad[] = {
        {0, 2},     /* format */
        {1, 65},    /* meta length */
        {2, 3},     /* number of extents */
        {7, 2},     /* bytes in use: more than a chunk */
        {18, 0},    /* an extent of no blocks */
        {18, 9},    /* overlaps the next, and the checksums do not fit */
        {20, 2},    /* unknown flag */
        {20, 1},    /* unwritten, but there are checksums for it */
        {26, 255},  /* physical block out of range */
        {27, 2},    /* the second starts inside the first */
        {28, 0x10}, /* past the largest chunk */
    };
    (void)state;

    chunk_encode(m, &w);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint8_t old = w.data[bad[i].at];
        w.data[bad[i].at] = bad[i].value;
        assert_int_equal(chunk_decode(w.data, w.len, &back), -EBADMSG);
        w.data[bad[i].at] = old;
    }
    memset(w.data + 8, 0, 8); /* version 0 means: no record */
    assert_int_equal(chunk_decode(w.data, w.len, &back), -EBADMSG);
    chunk_unref(m);
    wbuf_done(&w);
}

static void an_edit_in_the_middle_splits_an_extent(void **state)
{
    struct edit edits[] = {{0, 10, 100, false}, {4, 2, 500, false}};
    struct chunk_map *m = build(edits, 2);
    (void)state;

    assert_int_equal(m->nexts, 3);
    assert_ext(m, 0, 0, 4, 100);
    assert_ext(m, 1, 4, 2, 500);
    assert_ext(m, 2, 6, 4, 106);
    assert_ptr_equal(chunk_find(m, 5), &m->exts[1]);
    assert_ptr_equal(chunk_find(m, 9), &m->exts[2]);
    assert_null(chunk_find(m, 10));
    chunk_unref(m);
}

static void blocks_that_go_on_join_into_one_extent(void **state)
{
    struct edit edits[] = {{0, 4, 100, false}, {4, 4, 104, false}, {8, 2, 108, true}, {10, 2, 110, true}};
    struct chunk_map *m = build(edits, 4);
    (void)state;

    assert_int_equal(m->nexts, 2);
    assert_ext(m, 0, 0, 8, 100);
    assert_ext(m, 1, 8, 4, 108);
    chunk_unref(m);
}

struct freed_list {
    size_t n;
    struct {
        uint64_t phys;
        uint32_t n;
        bool unwritten;
    } v[8];
};

static void note_freed(void *user, uint64_t phys, uint32_t n, bool unwritten)
{
    struct freed_list *l = user;
    l->v[l->n].phys = phys;
    l->v[l->n].n = n;
    l->v[l->n++].unwritten = unwritten;
}

static void an_edit_tells_what_it_replaced(void **state)
{
    struct edit edits[] = {{0, 4, 100, false}, {6, 4, 300, true}, {12, 4, 200, false}};
    struct chunk_map *m = build(edits, 3), *next = NULL;
    struct freed_list l = {0};
    (void)state;

    assert_int_equal(chunk_edit(m, 2, 11, NULL, 0, NULL, note_freed, &l, &next), 0);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.v[0].phys, 102);
    assert_int_equal(l.v[0].n, 2);
    assert_int_equal(l.v[1].phys, 300);
    assert_int_equal(l.v[1].n, 4);
    assert_true(l.v[1].unwritten);
    assert_int_equal(l.v[2].phys, 200);
    assert_int_equal(l.v[2].n, 1);
    assert_int_equal(next->nexts, 2);
    assert_ext(next, 0, 0, 2, 100);
    assert_ext(next, 1, 13, 3, 201);
    chunk_unref(m);
    chunk_unref(next);
}

static int sum_extent(void *user, uint64_t block, uint32_t n)
{
    *(uint64_t *)user += block * n;
    return block == 666 ? -EEXIST : 0;
}

static void extents_of_a_record_are_enumerated(void **state)
{
    struct edit edits[] = {{0, 4, 100, false}, {8, 2, 50, true}, {12, 1, 666, false}};
    struct chunk_map *m = build(edits, 2);
    struct wbuf w = {0};
    uint64_t sum = 0;
    (void)state;

    chunk_encode(m, &w);
    assert_int_equal(chunk_for_each_extent(w.data, w.len, sum_extent, &sum), 0);
    assert_int_equal(sum, 500);
    assert_int_equal(chunk_for_each_extent(w.data, w.len - 1, sum_extent, &sum), -EIO);
    chunk_unref(m);
    wbuf_done(&w);
    m = build(edits, 3);
    chunk_encode(m, &w);
    assert_int_equal(chunk_for_each_extent(w.data, w.len, sum_extent, &sum), -EEXIST);
    chunk_unref(m);
    wbuf_done(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_survives_encoding),
        cmocka_unit_test(every_truncated_record_is_refused),
        cmocka_unit_test(wrong_fields_are_refused),
        cmocka_unit_test(an_edit_in_the_middle_splits_an_extent),
        cmocka_unit_test(blocks_that_go_on_join_into_one_extent),
        cmocka_unit_test(an_edit_tells_what_it_replaced),
        cmocka_unit_test(extents_of_a_record_are_enumerated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
