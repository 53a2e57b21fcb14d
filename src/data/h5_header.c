// Checks the types in an object header before the library decodes them: libhdf5 (1.10.8) trusts
// their sizes, and with damaged sizes copies megabytes past a buffer. Headers of version 2 have a
// checksum, which the library checks. [HDF5 file format specification, IV.A]
#include "base/file.h"
#include "base/memory.h"
#include "data/h5_file.h"

#include <string.h>

enum {
    PREFIX = 16,
    MESSAGE = 8, // bytes of a message's header
    PIECES = 64, // pieces of a header that are checked
    PIECE_BYTES = 1 << 16,
    TYPES = 8, // nesting depth of types
    SHARED = 2 // flag: the message is elsewhere
};
enum { MESSAGE_TYPE = 3, MESSAGE_ATTRIBUTE = 12, MESSAGE_CONTINUATION = 16 };
enum { FIXED, FLOAT, TIME, STRING, BITS, OPAQUE, COMPOUND, REFERENCE, ENUM, VARIABLE, ARRAY };

static uint64_t little(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

// Advances by `n` bytes; NULL: beyond the end.
static const uint8_t *skip(const uint8_t *at, const uint8_t *end, uint64_t n)
{
    return at && n <= (uint64_t)(end - at) ? at + n : NULL;
}

// Skips a zero-terminated name, in versions 1 and 2 padded to 8 bytes.
static const uint8_t *skip_name(const uint8_t *at, const uint8_t *end, int version)
{
    size_t n = at ? strnlen((const char *)at, (size_t)(end - at)) + 1 : 0;
    return skip(at, end, version < 3 ? (n + 7) / 8 * 8 : n);
}

// Skips what the library decodes of a type; NULL: it reaches beyond the end, or sizes contradict
// each other.
static const uint8_t *skip_type(const uint8_t *at, const uint8_t *end, int depth)
{
    const uint8_t *body = skip(at, end, 8), *base;
    uint64_t offset_bytes = 1; // bytes of a member's offset, in version 3
    if (!body || depth == TYPES)
        return NULL;
    int version = at[0] >> 4;
    uint64_t n = little(at + 1, 2), size = little(at + 4, 4);
    switch (at[0] & 15) {
    case FIXED:
    case BITS:
        return skip(body, end, 4);
    case FLOAT:
        return skip(body, end, 12);
    case TIME:
        return skip(body, end, 2);
    case OPAQUE:
        return skip(body, end, at[1]);
    case COMPOUND:
        while (version == 3 && size >> 8 * offset_bytes)
            offset_bytes++;
        for (uint64_t i = 0; i < n && body; i++) { // members: name, offset, type
            body = skip_name(body, end, version);
            body = skip(body, end, version == 1 ? 32 : version == 2 ? 4 : offset_bytes);
            body = skip_type(body, end, depth + 1);
        }
        return body;
    case ENUM: // copies of a value take the size of the enumeration, decoding its base type's
        base = body;
        body = skip_type(base, end, depth + 1);
        for (uint64_t i = 0; i < n; i++)
            body = skip_name(body, end, version);
        return body && little(base + 4, 4) == size ? skip(body, end, n * size) : NULL;
    case VARIABLE:
        return skip_type(body, end, depth + 1);
    case ARRAY:
        n = body < end ? body[0] : 0; // dimensions
        return skip_type(skip(body, end, version < 3 ? 4 + 8 * n : 1 + 4 * n), end, depth + 1);
    default: // a string, a reference
        return body;
    }
}

static bool fits(const uint8_t *at, const uint8_t *end, uint64_t kind)
{
    if (kind == MESSAGE_TYPE)
        return skip_type(at, end, 0) != NULL;
    if (kind != MESSAGE_ATTRIBUTE || end - at < MESSAGE || (at[0] > 1 && at[1] & 1))
        return true;
    uint64_t name = little(at + 2, 2), type = little(at + 4, 2); // bytes of each
    if (at[0] == 1) {
        name = (name + 7) / 8 * 8;
        type = (type + 7) / 8 * 8;
    }
    at = skip(at, end, MESSAGE + (at[0] == 3) + name); // version 3 adds a byte for the encoding
    const uint8_t *last = skip(at, end, type);
    return last && skip_type(at, last, 0);
}

struct pieces {
    int n;
    struct {
        uint64_t address, bytes;
    } at[PIECES];
};

// Checks the messages in one piece of the header, and adds the pieces that it refers to.
static bool messages_fit(const uint8_t *at, const uint8_t *end, struct pieces *pieces)
{
    while (end - at >= MESSAGE) {
        uint64_t kind = little(at, 2), n = little(at + 2, 2);
        bool shared = at[4] & SHARED;
        at += MESSAGE;
        if (n > (uint64_t)(end - at)) // the library refuses it
            return true;
        if (!shared && !fits(at, at + n, kind))
            return false;
        if (kind == MESSAGE_CONTINUATION && n >= 16 && pieces->n < PIECES) {
            pieces->at[pieces->n].address = little(at, 8);
            pieces->at[pieces->n++].bytes = little(at + 8, 8);
        }
        at += n;
    }
    return true;
}

dt_status dt_h5_check_types(const struct dt_h5_file *file, const char *name, uint64_t address)
{
    uint8_t prefix[PREFIX], *bytes;
    struct pieces pieces = {.n = 1};
    uint64_t end = (uint64_t)(file->bytes - file->base);
    bool fit = true;
    if (file->base < 0 || address > end || end - address < PREFIX)
        return DT_OK;
    DT_TRY(dt_pread_all(file->fd, file->path, prefix, PREFIX, file->base + (int64_t)address));
    if (prefix[0] != 1)
        return DT_OK;
    pieces.at[0].address = address + PREFIX;
    pieces.at[0].bytes = little(prefix + 8, 4);
    dt_status status = DT_NEW(&bytes, PIECE_BYTES, "the header of %s of %s", name, file->path);
    for (int i = 0; i < pieces.n && status == DT_OK && fit; i++) {
        uint64_t at = pieces.at[i].address, n = pieces.at[i].bytes;
        if (n > PIECE_BYTES || at > end || n > end - at)
            continue;
        status = dt_pread_all(file->fd, file->path, bytes, (int64_t)n, file->base + (int64_t)at);
        fit = status != DT_OK || messages_fit(bytes, bytes + n, &pieces);
    }
    free(bytes);
    if (fit)
        return status;
    return DT_FAIL(DT_USER, "copy or create the file again",
                   "%s: the type of %s is damaged: its sizes do not fit its header", file->path,
                   name);
}
