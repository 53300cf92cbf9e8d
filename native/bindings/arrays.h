// NumPy arrays as arguments. Every one is taken with .noconvert(): a converted copy would lose what is written to it,
// and turn float keys into integers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace arrays {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto span(const Array& array) {
  return std::span(array.data(), array.size());
}

template <class T>
std::span<T> span(const std::optional<Vector<T>>& array) {
  return array ? std::span<T>(array->data(), array->size()) : std::span<T>();
}

// A view of memory that `owner` keeps alive.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> view(T* data, std::size_t size, nb::handle owner) {
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

// An array that owns its memory. The contents are undefined.
template <class T, std::size_t N>
nb::ndarray<nb::numpy, T, nb::ndim<N>> make(const std::size_t (&shape)[N]) {
  std::size_t size = 1;
  for (const std::size_t extent : shape) size *= extent;
  T* const data = new T[size];
  const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
  return nb::ndarray<nb::numpy, T, nb::ndim<N>>(data, N, shape, owner);
}

}  // namespace arrays
