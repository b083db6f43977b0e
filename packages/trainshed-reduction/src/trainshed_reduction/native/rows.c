/* Manages blocks of memory, and adds the chunks of rows in them. */

#include "reducing.h"

#include <stdlib.h>
#include <string.h>

#define SMALLEST_ROOM 8
#define SPARE_BYTES (64u << 20)

struct block *block_take(struct blocks *blocks, uint32_t size)
{
    uint8_t room = SMALLEST_ROOM;
    while ((1u << room) < size)
        room++;
    struct block *block = blocks->spare[room];
    if (block) {
        blocks->spare[room] = block->next;
        blocks->spare_bytes -= 1u << room;
    } else if (!(block = aligned_alloc(64, sizeof *block + (1u << room)))) {
        return NULL;
    }
    block->uses = 1;
    block->size = size;
    block->room = room;
    blocks->used_bytes += size;
    return block;
}

void block_drop(struct blocks *blocks, struct block *block)
{
    if (!block || --block->uses)
        return;
    blocks->used_bytes -= block->size;
    if (blocks->spare_bytes + (1u << block->room) > SPARE_BYTES) {
        free(block);
        return;
    }
    block->next = blocks->spare[block->room];
    blocks->spare[block->room] = block;
    blocks->spare_bytes += 1u << block->room;
}

void blocks_free(struct blocks *blocks)
{
    for (int room = 0; room < ROOMS; room++)
        for (struct block *block; (block = blocks->spare[room]);) {
            blocks->spare[room] = block->next;
            free(block);
        }
    blocks->spare_bytes = 0;
}

bool row_begin(struct row *row, uint32_t world, const struct header *shape, double at)
{
    struct block **early = row->early;
    uint16_t *order = row->order;
    bool *takes = row->takes;
    if (!early) {
        early = calloc(world, sizeof *early);
        order = calloc(world, sizeof *order);
        takes = calloc(world, sizeof *takes);
        if (!early || !order || !takes) {
            free(early);
            free(order);
            free(takes);
            return false;
        }
    }
    *row = (struct row){.shape = *shape, .since = at, .early = early, .order = order, .takes = takes};
    return true;
}

bool row_agrees(const struct row *row, const struct header *header)
{
    const struct header *shape = &row->shape;
    return header->operation == shape->operation && header->chunk == shape->chunk && header->total == shape->total &&
           header->step == shape->step && header->dtype == shape->dtype && header->reduction == shape->reduction;
}

static bool accumulate(struct blocks *blocks, struct row *row, struct block *block)
{
    int dtype = row->shape.dtype;
    size_t count = block->size / width_of(dtype);
    if (row->total) {
        sums_add(dtype, row->total->data, block->data, count);
        block_drop(blocks, block);
        return true;
    }
    row->first = block;
    if (width_of(dtype) > 2) {
        row->total = block;
        return true;
    }
    row->total = block_take(blocks, 2 * block->size);
    if (!row->total)
        return false;
    sums_widen(dtype, row->total->data, block->data, count);
    return true;
}

/* Releases the partial sum of a row, and the chunks that have not been added yet. */
static void forget(struct blocks *blocks, struct row *row, uint32_t world)
{
    if (row->total != row->first)
        block_drop(blocks, row->total);
    block_drop(blocks, row->first);
    row->total = row->first = NULL;
    for (uint32_t rank = 0; rank < world; rank++) {
        block_drop(blocks, row->early[rank]);
        row->early[rank] = NULL;
    }
}

bool row_add(struct blocks *blocks, struct row *row, const struct header *header, struct block *block, uint32_t world)
{
    row->order[row->arrived++] = header->rank;
    if (row->final) {
        block_drop(blocks, block);
        return true;
    }
    if (header->kind == FINAL) {
        forget(blocks, row, world);
        row->final = block;
        return true;
    }
    row->early[header->rank] = block;
    while (row->next < world && row->early[row->next]) {
        struct block *next = row->early[row->next];
        row->early[row->next++] = NULL;
        if (!accumulate(blocks, row, next))
            return false;
    }
    return true;
}

struct block *row_result(struct row *row, uint32_t world)
{
    struct block *result = row->final;
    if (!result) {
        result = row->first;
        sums_finish(row->shape.dtype, row->shape.reduction, world, row->total->data, result->data,
                    result->size / width_of(row->shape.dtype));
    }
    result->uses++;
    return result;
}

void row_end(struct blocks *blocks, struct row *row, uint32_t world)
{
    if (!row->early)
        return;
    forget(blocks, row, world);
    block_drop(blocks, row->final);
    row->final = NULL;
    memset(row->takes, 0, world * sizeof *row->takes);
    row->arrived = 0;
}
