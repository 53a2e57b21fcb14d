// Counts memory that this program's code allocated and did not free. The linker wraps its calls
// (-Wl,--wrap=…), but not those inside shared libraries: what libraries cache is no leak.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTED_SLOTS = 1 << 18 };

static struct counted {
    void *memory;
    size_t bytes;
} counted_slots[COUNTED_SLOTS];
static long long counted_bytes;
static pthread_mutex_t counted_lock = PTHREAD_MUTEX_INITIALIZER;

// Finds the slot of this memory; with NULL, a free slot.
static struct counted *counted_find(const void *memory)
{
    size_t i = (size_t)((uintptr_t)memory / 16 * 0x9E3779B97F4A7C15u >> 46);
    while (counted_slots[i].memory && counted_slots[i].memory != memory)
        i = (i + 1) % COUNTED_SLOTS;
    return &counted_slots[i];
}

static void *counted_add(void *memory, size_t bytes)
{
    if (!memory)
        return NULL;
    pthread_mutex_lock(&counted_lock);
    struct counted *slot = counted_find(memory);
    counted_bytes += (long long)bytes - (long long)slot->bytes;
    *slot = (struct counted){memory, bytes};
    pthread_mutex_unlock(&counted_lock);
    return memory;
}

// Removes memory from the table. The slot stays in the chain, so that the slots after it are found.
// Memory that a library allocated is not in the table.
static void counted_remove(const void *memory)
{
    if (!memory)
        return;
    pthread_mutex_lock(&counted_lock);
    struct counted *slot = counted_find(memory);
    counted_bytes -= (long long)slot->bytes;
    slot->bytes = 0;
    pthread_mutex_unlock(&counted_lock);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t bytes);
int __real_posix_memalign(void **memory, size_t align, size_t bytes);
char *__real_strdup(const char *text);
void __real_free(void *memory);

void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return counted_add(__real_malloc(bytes), bytes);
}

void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
    return counted_add(__real_calloc(n, size), n * size);
}

void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes)
{
    counted_remove(memory);
    return counted_add(__real_realloc(memory, bytes), bytes);
}

int __wrap_posix_memalign(void **memory, size_t align, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t align, size_t bytes)
{
    int code = __real_posix_memalign(memory, align, bytes);
    if (code == 0)
        counted_add(*memory, bytes);
    return code;
}

char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    return counted_add(__real_strdup(text), strlen(text) + 1);
}

void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    counted_remove(memory);
    __real_free(memory);
}
