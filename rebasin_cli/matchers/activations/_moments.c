/* Sums over samples of the units of two models, of their squares and of all products, in one pass.
 *
 * What moments.py does with PyTorch, up to twice as fast: distances from each unit's origin are added up in
 * float over CHUNK samples, and those sums in double. A chunk is copied into panels of WIDTH units, so that
 * all that is multiplied lies beside each other. For x86-64 with AVX2 and FMA; anywhere else the module says
 * that it cannot be imported.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(_WIN32)
#define FITS (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 128 /* samples: with more, what a ReLU makes of zeros adds the same rounding too often */
#define WIDTH 16
#define TILE 4 /* units of the reference whose products are added up at once, in eight registers of sixteen */
#define LANES 4 /* sums at once of every unit: one would wait for itself */

#define AVX2 __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) AVX2

typedef Py_ssize_t Index;
typedef struct {
    __m256 low, high;
} Row; /* of a panel */

typedef struct {
    const char *data; /* samples × units of float, rows a stride apart */
    Index stride;     /* in bytes */
    const float *origin;
    double *sums, *squares; /* (units,) */
} Side;

INLINE Index least(Index a, Index b) { return a < b ? a : b; }

INLINE Row zeros(void)
{
    Row row = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    return row;
}

/* The first numbers of a row, as `masks` has it; what comes after them may be nobody's memory. */
INLINE Row row_at(const void *from, const __m256i *masks)
{
    Row row = {_mm256_maskload_ps(from, masks[0]), _mm256_maskload_ps((const float *)from + 8, masks[1])};
    return row;
}

/* Rows are values throughout: GCC 12 writes arrays of sums to memory in every turn. */
INLINE Row plus(Row sum, Row row, int squared)
{
    sum.low = squared ? _mm256_fmadd_ps(row.low, row.low, sum.low) : _mm256_add_ps(sum.low, row.low);
    sum.high = squared ? _mm256_fmadd_ps(row.high, row.high, sum.high) : _mm256_add_ps(sum.high, row.high);
    return sum;
}

INLINE Row plus_scaled(Row sum, Row row, const float *scale)
{
    const __m256 same = _mm256_broadcast_ss(scale);
    sum.low = _mm256_fmadd_ps(same, row.low, sum.low);
    sum.high = _mm256_fmadd_ps(same, row.high, sum.high);
    return sum;
}

INLINE Row loaded(const float *from)
{
    Row row = {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    return row;
}

INLINE void store(float *to, Row row)
{
    _mm256_storeu_ps(to, row.low);
    _mm256_storeu_ps(to + 8, row.high);
}

/* The sum of a panel's rows, or of their squares, added to `sums`. */
INLINE void add_up(const float *panel, Index samples, double *sums, Index size, int squared)
{
    Row a = zeros(), b = zeros(), c = zeros(), d = zeros();
    float each[WIDTH];
    Index s, k;
    for (s = 0; s < samples; s += LANES, panel += LANES * WIDTH) {
        a = plus(a, loaded(panel), squared);
        b = plus(b, loaded(panel + WIDTH), squared);
        c = plus(c, loaded(panel + 2 * WIDTH), squared);
        d = plus(d, loaded(panel + 3 * WIDTH), squared);
    }
    store(each, plus(plus(a, b, 0), plus(c, d, 0), 0));
    for (k = 0; k < size; k++) sums[k] += (double)each[k];
}

/* One panel of a chunk, less its origin, up to a multiple of LANES; the sums of that and of its squares.
 * The next chunk, of which there are `ahead` samples or more, is prefetched meanwhile. */
AVX2 static void pack(const Side *side, Index begin, Index samples, Index ahead, Index unit, Index size,
                      float *panel)
{
    const __m256i count = _mm256_set1_epi32((int)size), order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i masks[2] = {_mm256_cmpgt_epi32(count, order),
                              _mm256_cmpgt_epi32(count, _mm256_add_epi32(order, _mm256_set1_epi32(8)))};
    const char *from = side->data + begin * side->stride + unit * (Index)sizeof(float);
    const Row origin = row_at(side->origin + unit, masks);
    Index s;
    for (s = 0; s < samples; s++, from += side->stride) {
        Row row = row_at(from, masks);
        row.low = _mm256_sub_ps(row.low, origin.low);
        row.high = _mm256_sub_ps(row.high, origin.high);
        store(panel + s * WIDTH, row);
        if (s < ahead) _mm_prefetch(from + CHUNK * side->stride, _MM_HINT_T1);
    }
    for (; s % LANES; s++) store(panel + s * WIDTH, zeros());
    add_up(panel, s, side->sums + unit, size, 0);
    add_up(panel, s, side->squares + unit, size, 1);
}

/* Products of the first `rows` of TILE units of one panel with `columns` of another. */
AVX2 static void multiply(const float *x, const float *y, Index samples, double *products, Index units,
                          Index rows, Index columns)
{
    Row a = zeros(), b = zeros(), c = zeros(), d = zeros();
    float each[TILE][WIDTH];
    Index s, j, k;
    for (s = 0; s < samples; s++, x += WIDTH, y += WIDTH) {
        const Row row = loaded(y);
        a = plus_scaled(a, row, x);
        b = plus_scaled(b, row, x + 1);
        c = plus_scaled(c, row, x + 2);
        d = plus_scaled(d, row, x + 3);
    }
    store(each[0], a);
    store(each[1], b);
    store(each[2], c);
    store(each[3], d);
    for (k = 0; k < rows; k++)
        for (j = 0; j < columns; j++) products[k * units + j] += (double)each[k][j];
}

AVX2 static void add_all(const Side *x, const Side *y, Index samples, Index units, double *products,
                         float *space)
{
    const Index padded = (units + WIDTH - 1) / WIDTH * WIDTH;
    float *other = space + padded * CHUNK;
    Index begin, i, j;
    for (begin = 0; begin < samples; begin += CHUNK) {
        const Index some = least(CHUNK, samples - begin);
        for (i = 0; i < units; i += WIDTH) {
            pack(x, begin, some, samples - begin - CHUNK, i, least(WIDTH, units - i), space + i * CHUNK);
            pack(y, begin, some, samples - begin - CHUNK, i, least(WIDTH, units - i), other + i * CHUNK);
        }
        for (j = 0; j < units; j += WIDTH)
            for (i = 0; i < units; i += TILE)
                multiply(space + i / WIDTH * WIDTH * CHUNK + i % WIDTH, other + j * CHUNK, some,
                         products + i * units + j, units, least(TILE, units - i), least(WIDTH, units - j));
    }
}

/* ---- Python ---- */

/* Numbers of a kind, (columns,) or (rows, columns), in rows that are contiguous. */
static int is_array(const Py_buffer *b, char kind, int ndim, Index rows, Index columns)
{
    const char *format = b->format ? b->format : "B";
    if (*format == '@') format++;
    if (*format != kind || format[1] || b->ndim != ndim || b->shape[ndim - 1] != columns) return 0;
    if (ndim == 2 && b->shape[0] != rows) return 0;
    return columns < 2 || b->strides[ndim - 1] == b->itemsize;
}

static int is_whole(const Py_buffer *b, Index rows, Index columns)
{
    return is_array(b, 'd', 2, rows, columns) && (rows < 2 || b->strides[0] == columns * b->itemsize);
}

static PyObject *py_add(PyObject *self, PyObject *args)
{
    PyObject *objects[7], *result = NULL;
    Py_buffer b[7];
    Side sides[2];
    Index samples = 0, units = 0;
    float *space;
    int got, k, right;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6]))
        return NULL;
    for (got = 0; got < 7; got++) {
        int flags = PyBUF_FORMAT | PyBUF_STRIDES | (got > 3 ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[got], &b[got], flags)) goto done;
    }
    if (b[0].ndim == 2) {
        samples = b[0].shape[0];
        units = b[0].shape[1];
    }
    right = is_whole(&b[4], 2, units) && is_whole(&b[5], 2, units) && is_whole(&b[6], units, units);
    for (k = 0; k < 2; k++)
        right = right && is_array(&b[k], 'f', 2, samples, units) && is_array(&b[2 + k], 'f', 1, 1, units);
    if (!right) {
        PyErr_SetString(PyExc_ValueError,
                        "values must be samples × units of float32 in contiguous rows, origins (units,) of "
                        "float32, and sums (2, units), squares and products of float64, contiguous");
        goto done;
    }
    space = malloc((size_t)(2 * CHUNK * (units + WIDTH)) * sizeof(float));
    if (!space) {
        PyErr_NoMemory();
        goto done;
    }
    for (k = 0; k < 2; k++) {
        sides[k].data = b[k].buf;
        sides[k].stride = b[k].strides[0];
        sides[k].origin = b[2 + k].buf;
        sides[k].sums = (double *)b[4].buf + k * units;
        sides[k].squares = (double *)b[5].buf + k * units;
    }
    Py_BEGIN_ALLOW_THREADS
    add_all(&sides[0], &sides[1], samples, units, b[6].buf, space);
    Py_END_ALLOW_THREADS
    free(space);
    result = Py_NewRef(Py_None);
done:
    while (got--) PyBuffer_Release(&b[got]);
    return result;
}

static PyMethodDef methods[] = {
    {"add", py_add, METH_VARARGS,
     "add(x, y, origin_x, origin_y, sums, squares, products)\n\n"
     "x and y are samples × units. To sums and squares (2, units) and to products (unit of x × unit of y)\n"
     "is added what these samples give, less their origins."},
    {NULL, NULL, 0, NULL},
};

#else
#define FITS 0
static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};
#endif

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_moments", "Sums over samples", 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__moments(void)
{
    if (!FITS) {
        PyErr_SetString(PyExc_ImportError, "made for x86-64 with AVX2 and FMA");
        return NULL;
    }
    return PyModule_Create(&module);
}
