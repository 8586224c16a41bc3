// One chat completion with net/http's default client: the program prints the answer's body.
// Usage: call BASE_URL LABEL
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	baseURL, label := os.Args[1], os.Args[2]
	prompt := strings.Repeat("word ", 100)
	body := `{"model": "stub", "messages": [{"role": "user", "content": "` + prompt + `"}]}`
	request, err := http.NewRequest("POST", baseURL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Label", label)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		log.Fatal(answer.Status)
	}
	if _, err := io.Copy(os.Stdout, answer.Body); err != nil {
		log.Fatal(err)
	}
}
