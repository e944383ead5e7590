package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// pageSize is the number of pods in one answer of a list.
	pageSize = "500"
	// answerTimeout is how long the apiserver may take to begin its answer.
	answerTimeout = 30 * time.Second
)

// apiserver is a client for the pods of a cluster.
type apiserver struct {
	address string
	client  http.Client
}

// newApiserver returns a client with that certificate. The authority has signed the certificate of the apiserver.
func newApiserver(address string, authority *x509.CertPool, certFile, keyFile string) (*apiserver, error) {
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &apiserver{address, http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			RootCAs:      authority,
			Certificates: []tls.Certificate{certificate},
		},
		ForceAttemptHTTP2:     true, // so that one connection serves all requests
		DisableCompression:    true,
		ResponseHeaderTimeout: answerTimeout,
	}}}, nil
}

// list passes on all pods, and returns the resource version from which to watch.
func (a *apiserver) list(ctx context.Context, add func(*podObject)) (version string, err error) {
	for more := ""; ; {
		answer, err := a.get(ctx, url.Values{"limit": {pageSize}, "continue": {more}})
		if err != nil {
			return "", err
		}
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []podObject `json:"items"`
		}
		err = json.NewDecoder(answer).Decode(&page)
		answer.Close()
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			add(&page.Items[i])
		}
		if more = page.Metadata.Continue; more == "" {
			return page.Metadata.ResourceVersion, nil
		}
	}
}

// watch passes on each event after a resource version, and returns the version of the last one. The error is nil if the
// apiserver has ended the watch because its time was over.
func (a *apiserver) watch(ctx context.Context, version string, handle func(deleted bool, found *podObject)) (
	string, error) {
	query := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}}
	answer, err := a.get(ctx, query)
	if err != nil {
		return "", err
	}
	defer answer.Close()
	for decoder, count := json.NewDecoder(answer), 0; ; count++ {
		var event struct {
			Type   string    `json:"type"`
			Object podObject `json:"object"`
		}
		err := decoder.Decode(&event)
		switch {
		case event.Type == "ERROR":
			return "", errors.New(event.Object.Message)
		case err == io.EOF && count > 0:
			return version, nil
		case err != nil:
			return "", err
		case event.Type != "BOOKMARK":
			handle(event.Type == "DELETED", &event.Object)
		}
		version = event.Object.Metadata.ResourceVersion
	}
}

// patchStatus applies a strategic merge patch to the status of a pod.
func (a *apiserver) patchStatus(ctx context.Context, pod podName, body []byte) error {
	path := "/namespaces/" + pod.namespace + "/pods/" + pod.name + "/status"
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, a.address+"/api/v1"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	answer, err := a.send(request)
	if err != nil {
		return err
	}
	defer answer.Close()
	_, err = io.Copy(io.Discard, answer) // otherwise the connection cannot be used again
	return err
}

// get requests the pods of all namespaces.
func (a *apiserver) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	path := a.address + "/api/v1/pods?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return a.send(request)
}

// send sends a request and returns the body of the answer, or the error that the answer is.
func (a *apiserver) send(request *http.Request) (io.ReadCloser, error) {
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "tensile-endpoint")
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1024))
		return nil, fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	}
	return answer.Body, nil
}
