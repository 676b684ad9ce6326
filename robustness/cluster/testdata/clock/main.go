// Command clock prints, for each line that it reads, the time and how long it has run.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

func main() {
	began := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(time.Now().UnixNano(), int64(time.Since(began)))
	}
}
