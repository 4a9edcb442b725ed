/* Linear assignment, exactly: the permutation that maximises the sum of similarity[i, perm[i]].
 *
 * Jonker & Volgenant 1987, "A shortest augmenting path algorithm for dense and sparse linear assignment
 * problems", turned to maximisation. Duals are prices: similarity[i, j] <= u[i] + v[j], with equality on the
 * assignment. Whatever the type of the matrix, prices and everything computed with them are double.
 * Memory besides the matrix is O(n).
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Four columns at once where the processor can, decided when the module runs; plain C anywhere else. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PLAIN)
#define WIDE 1
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#else
#define WIDE 0
#endif
#if defined(_MSC_VER)
#define INLINE static __forceinline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

#define BLOCK 16 /* columns that go together; the arrays over columns are padded to a multiple */

#define PASSES 2 /* of bidding; what is left over then goes cheaper by shortest paths */
#define FEW 0.4 /* share of the rows that a start leaves free: with no more, paths alone are cheaper */
#define FAR 64.0 /* times the largest entry: prices that are no start */
#define LARGEST 1e300 /* magnitude; sums of what is beyond overflow */
#ifndef TOLERANCE
#define TOLERANCE 0x1p-46 /* times the largest entry: what rounding does to a reduced cost, as in duals.py */
#endif

typedef Py_ssize_t Index;

typedef struct {
    const char *data;
    Index n, padded, stride; /* stride in bytes */
    int single;              /* float, else double */
    int wide;                /* the processor has AVX2 */
} Matrix;

typedef struct {
    double best, second; /* of similarity[i, j] - v[j] over j */
    Index at;
} Best;

INLINE double entry(const void *row, Index j, int single)
{
    return single ? (double)((const float *)row)[j] : ((const double *)row)[j];
}

INLINE const void *row_of(const Matrix *a, Index i) { return a->data + i * a->stride; }

static double at(const Matrix *a, Index i, Index j) { return entry(row_of(a, i), j, a->single); }

/* The last block of a row, filled up with entries that nobody wants. */
INLINE const void *tail_of(const void *row, Index from, Index n, int single, double *space)
{
    Index k;
    if (single) {
        float *t = (float *)space;
        for (k = 0; k < BLOCK; k++) t[k] = from + k < n ? ((const float *)row)[from + k] : -INFINITY;
    } else {
        for (k = 0; k < BLOCK; k++) space[k] = from + k < n ? ((const double *)row)[from + k] : -INFINITY;
    }
    return space;
}

INLINE const void *block_of(const void *row, Index j, Index n, int single, double *space)
{
    if (j + BLOCK > n) return tail_of(row, j, n, single, space);
    return single ? (const void *)((const float *)row + j) : (const void *)((const double *)row + j);
}

/* ---- one row against all columns: plainly, and four columns at once ---- */

INLINE Best best_plain(const void *row, const double *v, Index n, int single)
{
    Best b = {-INFINITY, -INFINITY, 0};
    Index j;
    for (j = 0; j < n; j++) {
        double r = entry(row, j, single) - v[j];
        if (r > b.second) {
            if (r > b.best) {
                b.second = b.best;
                b.best = r;
                b.at = j;
            } else {
                b.second = r;
            }
        }
    }
    return b;
}

/* d[j] = min(d[j], v[j] - row[j] + h), and where the least of them is */
INLINE double relax_plain(const void *row, const double *v, double *d, double h, Index n, int first,
                          Index *where, int single)
{
    double least = INFINITY;
    Index j, found = 0;
    for (j = 0; j < n; j++) {
        double t = (v[j] - entry(row, j, single)) + h;
        double x = first || t < d[j] ? t : d[j];
        d[j] = x;
        if (x < least) {
            least = x;
            found = j;
        }
    }
    *where = found;
    return least;
}

/* the first column from j on with row[j] - v[j] >= bound, or n */
INLINE Index next_plain(const void *row, const double *v, double bound, Index j, Index n, int single)
{
    for (; j < n; j++)
        if (entry(row, j, single) - v[j] >= bound) return j;
    return n;
}

INLINE void add_plain(const void *row, double *sum, Index n, int single)
{
    Index j;
    for (j = 0; j < n; j++) sum[j] += entry(row, j, single);
}

/* The largest magnitude as bits: without the sign, floats order as integers, infinities and NaN on top. */
#define MAGNITUDE(bits, most)                                            \
    for (j = 0; j < n; j++) {                                            \
        bits x;                                                          \
        memcpy(&x, (const char *)row + j * (Index)sizeof x, sizeof x);   \
        x &= (bits)-1 >> 1;                                              \
        most = x > most ? x : most;                                      \
    }
INLINE uint64_t magnitude_plain(const void *row, Index n, int single)
{
    uint32_t most32 = 0;
    uint64_t most = 0;
    Index j;
    if (single) {
        MAGNITUDE(uint32_t, most32)
        return most32;
    }
    MAGNITUDE(uint64_t, most)
    return most;
}

/* The largest row[j] - prices[j], both of the matrix's type, and the largest magnitude, of columns from j on
 * and of what is known already. */
INLINE double most_plain(const void *row, const void *prices, Index j, Index n, double most,
                         uint64_t *magnitude, int single)
{
    const char *rest = (const char *)row + j * (single ? (Index)sizeof(float) : (Index)sizeof(double));
    uint64_t here = magnitude_plain(rest, n - j, single);
    *magnitude = here > *magnitude ? here : *magnitude;
    for (; j < n; j++) {
        double r = single ? ((const float *)row)[j] - ((const float *)prices)[j]
                          : ((const double *)row)[j] - ((const double *)prices)[j];
        most = r > most ? r : most;
    }
    return most;
}

INLINE void columns_plain(const void *row, double u, double i, double *top, double *who, Index n, int single)
{
    Index j;
    for (j = 0; j < n; j++) {
        double r = entry(row, j, single) - u;
        who[j] = r > top[j] ? i : who[j];
        top[j] = r > top[j] ? r : top[j];
    }
}

#if WIDE
#define VINLINE static inline __attribute__((always_inline, target("avx2")))

VINLINE __m256d four(const void *block, Index k, int single)
{
    return single ? _mm256_cvtps_pd(_mm_loadu_ps((const float *)block + k))
                  : _mm256_loadu_pd((const double *)block + k);
}

VINLINE __m256d less(const void *block, const double *v, Index j, Index k, int single)
{
    return _mm256_sub_pd(four(block, k, single), _mm256_loadu_pd(v + j + k));
}

/* The end of a search goes without branches: nothing would tell which way they go. */
VINLINE double lowest(__m256d x)
{
    __m128d y = _mm_min_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_min_sd(y, _mm_unpackhi_pd(y, y)));
}

VINLINE double highest(__m256d x)
{
    __m128d y = _mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_max_sd(y, _mm_unpackhi_pd(y, y)));
}

/* The lanes that hold this number. */
VINLINE __m256d equal(__m256d x, double number)
{
    return _mm256_cmp_pd(x, _mm256_set1_pd(number), _CMP_EQ_OQ);
}

VINLINE Best best_wide(const void *row, const double *v, Index n, int single)
{
    double space[BLOCK];
    int64_t lane_at[4];
    const __m256d nothing = _mm256_set1_pd(-INFINITY);
    __m256d top = nothing, top2 = top, same;
    __m256i where = _mm256_setzero_si256(), here = where;
    const __m256i step = _mm256_set1_epi64x(BLOCK);
    Best b;
    const void *block;
    unsigned lanes;
    Index j, base;
    for (j = 0; j < n; j += BLOCK) {
        __m256d r0, r1, r2, r3, a, c, x, y, hi, lo;
        block = block_of(row, j, n, single, space);
        r0 = less(block, v, j, 0, single);
        r1 = less(block, v, j, 4, single);
        r2 = less(block, v, j, 8, single);
        r3 = less(block, v, j, 12, single);
        a = _mm256_max_pd(r0, r1);
        c = _mm256_min_pd(r0, r1);
        x = _mm256_max_pd(r2, r3);
        y = _mm256_min_pd(r2, r3);
        hi = _mm256_max_pd(a, x); /* the two best of the four */
        lo = _mm256_max_pd(_mm256_min_pd(a, x), _mm256_max_pd(c, y));
        where = _mm256_castpd_si256(_mm256_blendv_pd(_mm256_castsi256_pd(where), _mm256_castsi256_pd(here),
                                                     _mm256_cmp_pd(hi, top, _CMP_GT_OQ)));
        top2 = _mm256_max_pd(_mm256_max_pd(top2, lo), _mm256_min_pd(top, hi));
        top = _mm256_max_pd(top, hi);
        here = _mm256_add_epi64(here, step);
    }
    _mm256_storeu_si256((__m256i *)lane_at, where);
    b.best = highest(top);
    same = equal(top, b.best);
    lanes = (unsigned)_mm256_movemask_pd(same);
    b.second = highest(_mm256_max_pd(top2, _mm256_blendv_pd(top, nothing, same)));
    if (lanes & (lanes - 1)) b.second = b.best;
    base = __builtin_ctz(lanes | 8);
    base += (Index)lane_at[base];
    block = block_of(row, base - base % BLOCK, n, single, space);
    lanes = 0;
    for (j = 0; j < 4; j++)
        lanes |= (unsigned)(entry(block, base % BLOCK + 4 * j, single) - v[base + 4 * j] == b.best) << j;
    b.at = base + 4 * __builtin_ctz(lanes | 8);
    return b;
}

VINLINE float highest_single(__m256 x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

VINLINE uint32_t highest_bits(__m256i x)
{
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epi32(y, _mm_unpackhi_epi64(y, y));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 1)));
}

/* In float, 32 columns at once: maxima of fewer would wait for each other. */
VINLINE double most_wide(const void *row, const void *prices, Index j, Index n, double most,
                         uint64_t *magnitude, int single)
{
    const float *a = (const float *)row, *p = (const float *)prices;
    __m256 m[4];
    __m256i b[4];
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    uint32_t bits;
    float found;
    int k;
    if (!single || j + 32 > n) return most_plain(row, prices, j, n, most, magnitude, single);
    for (k = 0; k < 4; k++) {
        m[k] = _mm256_set1_ps(-INFINITY);
        b[k] = _mm256_setzero_si256();
    }
    for (; j + 32 <= n; j += 32) {
        for (k = 0; k < 4; k++) {
            __m256 x = _mm256_loadu_ps(a + j + 8 * k);
            m[k] = _mm256_max_ps(_mm256_sub_ps(x, _mm256_loadu_ps(p + j + 8 * k)), m[k]);
            b[k] = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x), mask), b[k]);
        }
    }
    found = highest_single(_mm256_max_ps(_mm256_max_ps(m[0], m[1]), _mm256_max_ps(m[2], m[3])));
    bits = highest_bits(_mm256_max_epi32(_mm256_max_epi32(b[0], b[1]), _mm256_max_epi32(b[2], b[3])));
    most = found > most ? found : most;
    *magnitude = bits > *magnitude ? bits : *magnitude;
    return most_plain(row, prices, j, n, most, magnitude, single);
}

VINLINE double relax_wide(const void *row, const double *v, double *d, double h, Index n, int first,
                          Index *found, int single)
{
    double space[BLOCK], least;
    int64_t lane_at[4];
    unsigned lanes;
    __m256d low = _mm256_set1_pd(INFINITY);
    const __m256d add = _mm256_set1_pd(h);
    __m256i where = _mm256_setzero_si256(), here = where;
    const __m256i step = _mm256_set1_epi64x(BLOCK);
    Index j, k;
    for (j = 0; j < n; j += BLOCK) {
        const void *block = block_of(row, j, n, single, space);
        __m256d t0, t1, t2, t3, m;
        t0 = _mm256_add_pd(_mm256_sub_pd(_mm256_loadu_pd(v + j), four(block, 0, single)), add);
        t1 = _mm256_add_pd(_mm256_sub_pd(_mm256_loadu_pd(v + j + 4), four(block, 4, single)), add);
        t2 = _mm256_add_pd(_mm256_sub_pd(_mm256_loadu_pd(v + j + 8), four(block, 8, single)), add);
        t3 = _mm256_add_pd(_mm256_sub_pd(_mm256_loadu_pd(v + j + 12), four(block, 12, single)), add);
        if (!first) {
            t0 = _mm256_min_pd(t0, _mm256_loadu_pd(d + j));
            t1 = _mm256_min_pd(t1, _mm256_loadu_pd(d + j + 4));
            t2 = _mm256_min_pd(t2, _mm256_loadu_pd(d + j + 8));
            t3 = _mm256_min_pd(t3, _mm256_loadu_pd(d + j + 12));
        }
        _mm256_storeu_pd(d + j, t0);
        _mm256_storeu_pd(d + j + 4, t1);
        _mm256_storeu_pd(d + j + 8, t2);
        _mm256_storeu_pd(d + j + 12, t3);
        m = _mm256_min_pd(_mm256_min_pd(t0, t1), _mm256_min_pd(t2, t3));
        where = _mm256_castpd_si256(_mm256_blendv_pd(_mm256_castsi256_pd(where), _mm256_castsi256_pd(here),
                                                     _mm256_cmp_pd(m, low, _CMP_LT_OQ)));
        low = _mm256_min_pd(low, m);
        here = _mm256_add_epi64(here, step);
    }
    _mm256_storeu_si256((__m256i *)lane_at, where);
    least = lowest(low);
    j = __builtin_ctz((unsigned)_mm256_movemask_pd(equal(low, least)) | 8);
    j += (Index)lane_at[j];
    lanes = 0;
    for (k = 0; k < 4; k++) lanes |= (unsigned)(d[j + 4 * k] == least) << k;
    *found = j + 4 * __builtin_ctz(lanes | 8);
    return least;
}

VINLINE Index next_wide(const void *row, const double *v, double bound, Index j, Index n, int single)
{
    double space[BLOCK];
    const __m256d limit = _mm256_set1_pd(bound);
    unsigned skip = 0xffffu << (j % BLOCK);
    for (j -= j % BLOCK; j < n; j += BLOCK, skip = 0xffffu) {
        const void *block = block_of(row, j, n, single, space);
        __m256d r0 = _mm256_cmp_pd(less(block, v, j, 0, single), limit, _CMP_GE_OQ);
        __m256d r1 = _mm256_cmp_pd(less(block, v, j, 4, single), limit, _CMP_GE_OQ);
        __m256d r2 = _mm256_cmp_pd(less(block, v, j, 8, single), limit, _CMP_GE_OQ);
        __m256d r3 = _mm256_cmp_pd(less(block, v, j, 12, single), limit, _CMP_GE_OQ);
        if (_mm256_movemask_pd(_mm256_or_pd(_mm256_or_pd(r0, r1), _mm256_or_pd(r2, r3)))) {
            unsigned mask = (unsigned)(_mm256_movemask_pd(r0) | _mm256_movemask_pd(r1) << 4 |
                                       _mm256_movemask_pd(r2) << 8 | _mm256_movemask_pd(r3) << 12);
            mask &= skip;
            if (mask) return j + __builtin_ctz(mask);
        }
    }
    return n;
}
#endif

/* Every kernel for both types, plain and wide, so that the type is a constant in its loops. */
#define ANYWHERE
#define COMPILE(where, kind, single, best, relax, next, most)                                   \
    where static Best best_##kind(const void *row, const double *v, Index n)                    \
    {                                                                                           \
        return best(row, v, n, single);                                                         \
    }                                                                                           \
    where static double start_##kind(const void *row, const double *v, double *d, Index n,      \
                                     Index *found)                                              \
    {                                                                                           \
        return relax(row, v, d, 0, n, 1, found, single);                                        \
    }                                                                                           \
    where static double relax_##kind(const void *row, const double *v, double *d, double h,     \
                                     Index n, Index *found)                                     \
    {                                                                                           \
        return relax(row, v, d, h, n, 0, found, single);                                        \
    }                                                                                           \
    where static Index next_##kind(const void *row, const double *v, double bound, Index j,     \
                                   Index n)                                                     \
    {                                                                                           \
        return next(row, v, bound, j, n, single);                                               \
    }                                                                                           \
    where static void add_##kind(const void *row, double *sum, Index n)                         \
    {                                                                                           \
        add_plain(row, sum, n, single);                                                         \
    }                                                                                           \
    where static uint64_t magnitude_##kind(const void *row, Index n)                            \
    {                                                                                           \
        return magnitude_plain(row, n, single);                                                 \
    }                                                                                           \
    where static double most_##kind(const void *row, const void *prices, Index n, uint64_t *at) \
    {                                                                                           \
        return most(row, prices, 0, n, -INFINITY, at, single);                                  \
    }                                                                                           \
    where static void columns_##kind(const void *row, double u, double i, double *top,          \
                                     double *who, Index n)                                      \
    {                                                                                           \
        columns_plain(row, u, i, top, who, n, single);                                          \
    }

COMPILE(ANYWHERE, plain64, 0, best_plain, relax_plain, next_plain, most_plain)
COMPILE(ANYWHERE, plain32, 1, best_plain, relax_plain, next_plain, most_plain)
#if WIDE
COMPILE(AVX2, wide64, 0, best_wide, relax_wide, next_wide, most_wide)
COMPILE(AVX2, wide32, 1, best_wide, relax_wide, next_wide, most_wide)
#endif

typedef struct {
    Best (*best)(const void *, const double *, Index);
    double (*relax)(const void *, const double *, double *, double, Index, Index *);
    double (*start)(const void *, const double *, double *, Index, Index *);
    Index (*next)(const void *, const double *, double, Index, Index);
    void (*add)(const void *, double *, Index);
    uint64_t (*magnitude)(const void *, Index);
    double (*most)(const void *, const void *, Index, uint64_t *);
    void (*columns)(const void *, double, double, double *, double *, Index);
} Kernels;

#define KERNELS(kind)                                                                           \
    {                                                                                           \
        best_##kind, relax_##kind, start_##kind, next_##kind, add_##kind, magnitude_##kind,     \
            most_##kind, columns_##kind                                                         \
    }
static const Kernels kernels[] = {
    KERNELS(plain64),
    KERNELS(plain32),
#if WIDE
    KERNELS(wide64),
    KERNELS(wide32),
#endif
};

/* ---- the solver ---- */

typedef struct {
    const Matrix *a;
    const Kernels *k;
    double scale, tolerance;
    double *v, *u;              /* prices of columns and of rows */
    double *margins;            /* by how much rows prefer their columns to all others */
    double *rival;              /* what a row would have elsewhere, at most, if known; see warm */
    void *low;                  /* prices in the matrix's type, rounded down */
    int64_t *perm, *owner;      /* column of a row, row of a column; -1: none */
    double *w, *d, *h, *reached; /* prices with scanned columns at infinity; distances; see augment */
    int64_t *rows, *cols, *free_rows, *free_cols;
    int64_t *edge_from, *edge_to, *degree;
    Index n_free, n_free_cols;
} Work;

/* What the bits of the largest magnitude mean. */
static double number(uint64_t bits, int single)
{
    uint32_t half = (uint32_t)bits;
    float f;
    double d;
    memcpy(&f, &half, sizeof f);
    memcpy(&d, &bits, sizeof d);
    return single ? (double)f : d;
}

static void assign(Work *s, Index i, Index j)
{
    s->perm[i] = j;
    s->owner[j] = i;
    s->rival[i] = INFINITY;
}

static Best best(const Work *s, Index i) { return s->k->best(row_of(s->a, i), s->v, s->a->n); }

/* Augmenting row reduction: a free row takes its best column and raises its price to where the second best
 * is as good; the row that held it is free now. */
static void bid(Work *s)
{
    Index n = s->a->n, pass;
    for (pass = 0; pass < PASSES && s->n_free; pass++) {
        Index count = s->n_free, k = 0;
        long long budget = 4 * (long long)n + 16;
        s->n_free = 0;
        while (k < count) {
            Index i = (Index)s->free_rows[k++], j;
            Best b = best(s, i);
            int64_t other;
            j = b.at;
            other = s->owner[j];
            if (b.best > b.second && n > 1) {
                s->v[j] += b.best - b.second;
            } else if (other >= 0) {
                Index twin = s->k->next(row_of(s->a, i), s->v, b.best, 0, n);
                while (twin < n && s->owner[twin] >= 0)
                    twin = s->k->next(row_of(s->a, i), s->v, b.best, twin + 1, n);
                if (twin < n) {
                    j = twin;
                    other = -1;
                }
            }
            if (other >= 0) {
                s->perm[other] = -1;
                if (b.best > b.second && --budget > 0)
                    s->free_rows[--k] = other;
                else
                    s->free_rows[s->n_free++] = other;
            }
            assign(s, i, j);
        }
    }
}

/* A shortest path of alternating edges from a free row to a free column, and the prices that make it tight.
 *
 * Row rows[k] is scanned with h[k] and was entered through column cols[k - 1], whose distance is
 * reached[k - 1]. Who came before a column is found again at the end, by the same arithmetic: cheaper than
 * writing it down in each scan. */
static void augment(Work *s, Index start)
{
    const Matrix *a = s->a;
    Index n = a->n, i = start, j, k, q, limit, count = 0;
    double h = 0, least;
    for (;;) {
        s->rows[count] = i;
        s->h[count] = h;
        least = count ? s->k->relax(row_of(a, i), s->w, s->d, h, n, &j)
                      : s->k->start(row_of(a, i), s->w, s->d, n, &j);
        if (count && least <= s->reached[count - 1]) /* one of several as near: one that ends the path? */
            for (k = 0; k < s->n_free_cols && s->owner[j] >= 0; k++)
                if (s->d[s->free_cols[k]] <= least) j = (Index)s->free_cols[k];
        if (s->owner[j] < 0) break;
        s->cols[count] = j;
        s->reached[count++] = least;
        s->w[j] = s->d[j] = INFINITY;
        i = (Index)s->owner[j];
        h = least + (at(a, i, j) - s->v[j]);
    }
    for (k = 0; s->free_cols[k] != j; k++) {
    }
    s->free_cols[k] = s->free_cols[--s->n_free_cols];
    for (limit = count + 1;; limit = k) {
        double low = INFINITY;
        k = 0;
        for (q = 0; q < limit; q++) {
            double t = (s->v[j] - at(a, (Index)s->rows[q], j)) + s->h[q];
            if (t < low) {
                low = t;
                k = q;
            }
        }
        assign(s, (Index)s->rows[k], j);
        if (!k) break;
        j = (Index)s->cols[k - 1];
    }
    for (k = 0; k < count; k++) {
        j = (Index)s->cols[k];
        s->v[j] += least - s->reached[k];
        s->w[j] = s->v[j];
    }
}

static void augment_all(Work *s)
{
    Index k;
    memcpy(s->w, s->v, (size_t)s->a->padded * sizeof(double));
    s->n_free_cols = 0;
    for (k = 0; k < s->a->n; k++)
        if (s->owner[k] < 0) s->free_cols[s->n_free_cols++] = k;
    for (k = 0; k < s->n_free; k++) augment(s, (Index)s->free_rows[k]);
    s->n_free = 0;
}

/* Begins with the means of columns as prices, which spares matrices with strong columns long price wars; rows
 * take their best column. A column that nobody took becomes cheaper until somebody may have it. */
static int cold(Work *s)
{
    const Matrix *a = s->a;
    Index n = a->n, i, j, assigned = 0;
    uint64_t most = 0, here;
    memset(s->v, 0, (size_t)a->padded * sizeof(double));
    for (i = 0; i < n; i++) {
        here = s->k->magnitude(row_of(a, i), n);
        most = here > most ? here : most;
        s->k->add(row_of(a, i), s->v, n);
    }
    s->scale = number(most, a->single);
    if (!(s->scale <= LARGEST)) return 0;
    for (j = 0; j < n; j++) {
        s->v[j] /= (double)n;
        s->owner[j] = -1;
    }
    for (i = 0; i < n; i++) {
        Best b = best(s, i);
        s->u[i] = b.best;
        s->perm[i] = -1;
        if (s->owner[b.at] < 0) {
            assign(s, i, b.at);
            assigned++;
        }
    }
    if (assigned == n) return 1;
    for (j = 0; j < n; j++) s->d[j] = -INFINITY;
    for (i = 0; i < n; i++) s->k->columns(row_of(a, i), s->u[i], (double)i, s->d, s->w, n);
    for (j = 0; j < n; j++) {
        if (s->owner[j] >= 0) continue;
        i = (Index)s->w[j];
        s->v[j] = s->d[j];
        if (s->perm[i] < 0) assign(s, i, j);
    }
    return 1;
}

/* Sets a column's price in `low`. */
static void price(const Work *s, Index j, double v)
{
    float f = (float)v;
    if (!s->a->single)
        ((double *)s->low)[j] = v;
    else
        ((float *)s->low)[j] = (double)f > v ? nextafterf(f, -INFINITY) : f;
}

/* What row i would have in any column but this one, at most, and the largest magnitude so far. In float it
 * is rounded up: a difference of floats is off by half of 2^-23 of itself, or by the least normal number
 * where smaller ones are flushed. */
static double elsewhere(const Work *s, Index i, Index j, uint64_t *magnitude)
{
    double most;
    price(s, j, INFINITY);
    most = s->k->most(row_of(s->a, i), s->low, s->a->n, magnitude);
    price(s, j, s->v[j]);
    if (!s->a->single) return most;
    return fabs(most) <= FLT_MAX ? most + fabs(most) * FLT_EPSILON + FLT_MIN : INFINITY;
}

/* Any prices of columns are feasible with the right ones of the rows; pairs that are tight are kept. Most
 * rows prefer their columns clearly: for them one look at what else there is says so, and as prices do not
 * fall from here on, it is `rival` still when all is done. */
static int warm(Work *s)
{
    const Matrix *a = s->a;
    Index n = a->n, i, j;
    uint64_t most = 0;
    double tolerance;
    for (j = 0; j < n; j++) price(s, j, s->v[j]);
    for (i = 0; i < n; i++) {
        int theirs = s->perm[i] >= 0 && s->perm[i] < n && s->owner[s->perm[i]] < 0;
        double rival;
        j = theirs ? (Index)s->perm[i] : 0;
        rival = elsewhere(s, i, j, &most); /* of any column where it has none, for the magnitude */
        s->perm[i] = -1;
        if (!theirs) continue;
        assign(s, i, j);
        s->rival[i] = rival;
    }
    s->scale = number(most, a->single);
    if (!(s->scale <= LARGEST)) return 0;
    for (j = 0; j < n; j++)
        if (!(fabs(s->v[j]) <= FAR * s->scale)) return cold(s); /* such prices would round the matrix away */
    tolerance = TOLERANCE * s->scale;
    for (i = 0; i < n; i++) {
        double mine;
        Best b;
        if ((j = (Index)s->perm[i]) < 0) continue;
        mine = at(a, i, j) - s->v[j];
        if (mine - s->rival[i] > tolerance) continue;
        b = best(s, i);
        s->rival[i] = b.second;
        if (mine >= b.best - tolerance) continue;
        s->owner[j] = -1;
        s->perm[i] = -1;
    }
    return 1;
}

/* Prices and margins of rows; the number of rows that would rather have another column than theirs, which
 * are freed; and the tight pairs beside the assigned ones, up to 4n of them. */
static Index verify(Work *s, Index *n_edges)
{
    const Matrix *a = s->a;
    Index n = a->n, i, j, wrong = 0, edges = 0;
    for (i = 0; i < n; i++) {
        const void *row = row_of(a, i);
        Index mine = (Index)s->perm[i];
        double u = at(a, i, mine) - s->v[mine], bound = edges > 4 * n ? u + s->tolerance : u - s->tolerance;
        Best b;
        int bad = 0;
        s->u[i] = u;
        s->margins[i] = u - s->rival[i];
        if (s->margins[i] > s->tolerance) continue; /* the best still, as it was at the beginning */
        b = best(s, i);
        s->margins[i] = u - (b.at == mine ? b.second : b.best);
        if (s->margins[i] > s->tolerance) continue; /* no other is tight */
        for (j = s->k->next(row, s->v, bound, 0, n); j < n; j = s->k->next(row, s->v, bound, j + 1, n)) {
            double r;
            if (j == mine) continue;
            r = entry(row, j, a->single) - s->v[j];
            bad |= r > u + s->tolerance;
            if (edges < 4 * n) {
                s->edge_from[edges] = i;
                s->edge_to[edges] = s->owner[j];
            }
            if (++edges > 4 * n) bound = u + s->tolerance; /* too many to look at here: wrong ones only */
        }
        if (bad) s->free_rows[wrong++] = i;
    }
    *n_edges = edges;
    return wrong;
}

/* Whether the tight pairs form no alternating cycle, so that the optimum is the only one: rows nobody points
 * at are taken away until none is left. */
static int unique(Work *s, Index edges)
{
    Index n = s->a->n, i, e, done = 0, head = 0;
    int64_t *offset = s->cols, *degree = s->degree, *queue = s->rows;
    const int64_t *target = s->edge_to;
    if (edges > 4 * n) return 0;
    memset(degree, 0, (size_t)n * sizeof(*degree));
    for (i = e = 0; i <= n; i++) { /* they are in order of their rows */
        while (e < edges && s->edge_from[e] < i) e++;
        offset[i] = e;
    }
    for (e = 0; e < edges; e++) degree[target[e]]++;
    for (i = 0; i < n; i++)
        if (!degree[i]) queue[done++] = i;
    while (head < done) {
        i = (Index)queue[head++];
        for (e = (Index)offset[i]; e < (Index)offset[i + 1]; e++)
            if (!--degree[target[e]]) queue[done++] = target[e];
    }
    return done == n;
}

/* What was found: the only optimum, one of several perhaps, or duals that rounding keeps from a proof. */
enum { UNIQUE, TIES, NOT_FINITE, NO_MEMORY, UNSURE };

static int run(Work *s, int is_warm)
{
    Index n = s->a->n, i, j, k, edges = 0, wrong;
    int round;
    for (j = 0; j < n; j++) s->owner[j] = -1;
    for (j = n; j < s->a->padded; j++) s->v[j] = s->w[j] = s->d[j] = 0;
    if (!(is_warm ? warm(s) : cold(s))) return NOT_FINITE;
    s->tolerance = TOLERANCE * s->scale;
    s->n_free = 0;
    for (i = 0; i < n; i++)
        if (s->perm[i] < 0) s->free_rows[s->n_free++] = i;
    if (!is_warm || (double)s->n_free > FEW * (double)n) bid(s);
    augment_all(s);
    for (round = 0; (wrong = verify(s, &edges)) && round < 4; round++) {
        for (k = 0; k < wrong; k++) {
            i = (Index)s->free_rows[k];
            s->owner[s->perm[i]] = -1;
            s->perm[i] = -1;
        }
        s->n_free = wrong;
        augment_all(s);
    }
    return wrong ? UNSURE : unique(s, edges) ? UNIQUE : TIES;
}

/* Prices to begin with, of a solution. Those that shortest paths end with are extreme: every path leaves rows
 * that are content with two columns, and the least change of the matrix drives half of them away. A column's
 * price may rise by half of what its row prefers it by: no row leaves its own, as what it loses by that the
 * others have lost as well, or had to spare. The mean stays, or prices would rise with every solve. */
static void begin(Work *s, const double *duals, const int64_t *pairs)
{
    Index n = s->a->n, i;
    const double *margins = duals + 2 * n;
    double risen = 0;
    memcpy(s->v, duals + n, (size_t)n * sizeof(double));
    memcpy(s->perm, pairs, (size_t)n * sizeof(int64_t));
    for (i = 0; i < n; i++) {
        if (pairs[i] < 0 || pairs[i] >= n || !(margins[i] > 0 && margins[i] <= LARGEST)) continue;
        s->v[pairs[i]] += margins[i] / 2;
        risen += margins[i] / 2;
    }
    for (i = 0; i < n; i++) s->v[i] -= risen / (double)n;
}

/* `duals` are rows, columns and margins, n of each; the start is those and a row's column each, or NULL. */
static int solve(const Matrix *a, double *duals, int64_t *perm, const double *start, const int64_t *pairs)
{
    Work s;
    size_t n = (size_t)a->n, padded = (size_t)a->padded;
    double *space = malloc((6 * padded + 2 * n + 16 + 1) * sizeof(double));
    int64_t *ints = malloc((15 * n + 32) * sizeof(int64_t));
    int state = NO_MEMORY;
    if (space && ints) {
        memset(&s, 0, sizeof s);
        s.a = a;
        s.k = &kernels[2 * a->wide + a->single];
        s.v = space;
        s.w = s.v + padded;
        s.d = s.w + padded;
        s.low = s.d + padded;
        s.h = s.d + 2 * padded;
        s.reached = s.h + padded;
        s.rival = s.reached + padded;
        s.u = duals;
        s.margins = duals + 2 * n;
        s.perm = perm;
        s.owner = ints;
        s.rows = s.owner + n;
        s.cols = s.rows + n + 1;
        s.free_rows = s.cols + n + 1;
        s.degree = s.free_rows + n + 1;
        s.free_cols = s.degree + n;
        s.edge_from = s.free_cols + n;
        s.edge_to = s.edge_from + 4 * n;
        if (start) begin(&s, start, pairs);
        state = run(&s, start != NULL);
        memcpy(duals + n, s.v, n * sizeof(double));
    }
    free(space);
    free(ints);
    return state;
}

/* ---- Python ---- */

static int is_type(const Py_buffer *b, char kind)
{
    const char *f = b->format ? b->format : "B";
    if (*f == '@') f++;
    return (*f == kind || (kind == 'q' && *f == 'l' && b->itemsize == 8)) && !f[1];
}

/* An array of n numbers, or of rows of n, that lie one after the other. */
static int is_array(const Py_buffer *b, char kind, int rows, Index n)
{
    int last = rows > 1;
    if (!is_type(b, kind) || b->ndim != last + 1 || b->shape[last] != n) return 0;
    if (n > 1 && b->strides[last] != b->itemsize) return 0;
    return !last || (b->shape[0] == rows && b->strides[0] == n * b->itemsize);
}

static PyObject *py_solve(PyObject *self, PyObject *args)
{
    PyObject *objects[5] = {NULL, NULL, NULL, Py_None, Py_None}, *result = NULL;
    Py_buffer b[5];
    static const char kinds[5] = {0, 'd', 'q', 'd', 'q'};
    static const char *const states[] = {"unique", "ties", "not finite", "", "unsure"};
    int got, count, k, state;
    Matrix a;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO|OO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4]))
        return NULL;
    count = objects[3] == Py_None && objects[4] == Py_None ? 3 : 5;
    for (got = 0; got < count; got++) {
        int flags = PyBUF_FORMAT | PyBUF_STRIDES | (got == 1 || got == 2 ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[got], &b[got], flags)) goto done;
    }
    a.single = is_type(&b[0], 'f');
    if (b[0].ndim != 2 || b[0].shape[0] != b[0].shape[1] || b[0].strides[1] != b[0].itemsize ||
        !(a.single || is_type(&b[0], 'd'))) {
        PyErr_SetString(PyExc_ValueError,
                        "similarity must be a square matrix of float32 or float64 with contiguous rows");
        goto done;
    }
    a.n = b[0].shape[0];
    for (k = 1; k < count; k++) {
        if (!is_array(&b[k], kinds[k], k % 2 ? 3 : 1, a.n)) {
            PyErr_SetString(PyExc_ValueError,
                            "duals must be three rows of float64, and permutations int64, contiguous and as "
                            "long as the matrix");
            goto done;
        }
    }
    a.data = b[0].buf;
    a.stride = b[0].strides[0];
    a.padded = (a.n + BLOCK - 1) / BLOCK * BLOCK;
#if WIDE
    a.wide = __builtin_cpu_supports("avx2") ? 1 : 0;
#else
    a.wide = 0;
#endif
    Py_BEGIN_ALLOW_THREADS
    state = solve(&a, b[1].buf, b[2].buf, count > 3 ? b[3].buf : NULL, count > 3 ? b[4].buf : NULL);
    Py_END_ALLOW_THREADS
    if (state == NO_MEMORY)
        PyErr_NoMemory();
    else
        result = PyUnicode_FromString(states[state]);
done:
    while (got--) PyBuffer_Release(&b[got]);
    return result;
}

static PyMethodDef methods[] = {
    {"solve", py_solve, METH_VARARGS,
     "solve(similarity, duals, perm, start=None, pairs=None) -> 'unique', 'ties', 'not finite' or 'unsure'\n\n"
     "Into duals (3, n) go those of rows, those of columns and margins. start and pairs, such duals and a\n"
     "permutation, are where it begins."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lap", "Linear assignment", 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lap(void) { return PyModule_Create(&module); }
