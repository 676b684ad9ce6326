// Package house tests how the project is built: which words its names and texts use, that a file of tests is named after
// what it tests, and that the picture of the packages in docs/architecture.md shows what is there.
package house
