package main

import (
	"log"
	"os"
)

// 2x is (2, -2), (20, -40), (200, 200); shifted it is (0, 0), (2, -2), and
// (0, 0) where the second sequence starts.
func Example() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 2 0
	// 22 0
	// 200 200
	// 1 replay of 2 graphs, padded by 1
}
