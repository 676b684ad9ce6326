// Command client only answers orders. Its history file gets a line for each.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	var config struct {
		History string `json:"history"`
	}
	if err := json.Unmarshal(in.Bytes(), &config); err != nil {
		panic(err)
	}
	for calls := 1; in.Scan(); calls++ {
		var order struct {
			Do string `json:"do"`
		}
		if err := json.Unmarshal(in.Bytes(), &order); err != nil {
			panic(err)
		}
		line := fmt.Sprintln(order.Do, time.Now().Unix())
		if err := os.WriteFile(config.History, []byte(line), 0o600); err != nil {
			panic(err)
		}
		fmt.Printf("{\"done\":%q,\"calls\":%d}\n", order.Do, calls)
	}
}
