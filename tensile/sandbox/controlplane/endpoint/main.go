// Command endpoint serves the streaming half of the kubelet API (containerLogs, exec, attach,
// portForward) for nodes that exist in name only: commands run as local processes, logs are read
// from files, and what belongs to a pod is removed with it. It uses the streaming server of container runtimes, so exit
// codes and half-closed streams behave as on a real node.
//
// It is compiled where it is used, so it has few dependencies: decoding of pods and the reading of logs are own code.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// options are the command line.
type options struct {
	listen, certFile, keyFile, clientCAFile, clientName             string
	apiserver, apiserverCAFile, apiserverCertFile, apiserverKeyFile string
	logs, work                                                      string
}

// target is the container of a request.
type target struct{ namespace, pod, container string }

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "", "address and port to serve on")
	flag.StringVar(&o.certFile, "tls-cert-file", "", "serving certificate")
	flag.StringVar(&o.keyFile, "tls-key-file", "", "key of the serving certificate")
	flag.StringVar(&o.clientCAFile, "client-ca-file", "", "authority that signed the caller's certificate")
	flag.StringVar(&o.clientName, "client-name", "", "the only common name that may call")
	flag.StringVar(&o.apiserver, "apiserver", "", "address of the apiserver whose pods these are")
	flag.StringVar(&o.apiserverCAFile, "apiserver-certificate-authority", "", "authority that signed its certificate")
	flag.StringVar(&o.apiserverCertFile, "apiserver-client-certificate", "", "certificate for requests to it")
	flag.StringVar(&o.apiserverKeyFile, "apiserver-client-key", "", "key of that certificate")
	flag.StringVar(&o.logs, "logs", "", "folder of NAMESPACE/POD/CONTAINER.log in CRI format")
	flag.StringVar(&o.work, "work", "", "folder in which each container gets a working directory")
	flag.Parse()
	if err := serve(o); err != nil {
		fmt.Fprintln(os.Stderr, "endpoint:", err)
		os.Exit(1)
	}
}

// serve answers requests until the process is killed.
func serve(o options) error {
	callers, err := readAuthority(o.clientCAFile)
	if err != nil {
		return err
	}
	authority, err := readAuthority(o.apiserverCAFile)
	if err != nil {
		return err
	}
	api, err := newApiserver(o.apiserver, authority, o.apiserverCertFile, o.apiserverKeyFile)
	if err != nil {
		return err
	}
	pods := newPods(api, o.logs, o.work)
	go pods.follow(context.Background())
	server := &http.Server{
		Handler: onlyFrom(o.clientName, routes(pods.streams)),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs:  callers,
			NextProtos: []string{"http/1.1"}, // upgrades exist in no other version
		},
	}
	sockets, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	return server.ServeTLS(listener{sockets}, o.certFile, o.keyFile)
}

// readAuthority returns the certificates of a file.
func readAuthority(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(path + " holds no certificate")
	}
	return pool, nil
}

// routes maps the kubelet's paths to their handlers.
func routes(streams streamer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", withTarget(streams.logs.serve))
	for path, handler := range map[string]func(http.ResponseWriter, *http.Request, target){
		"/exec": streams.exec, "/attach": streams.attach,
	} {
		mux.HandleFunc(path+"/{namespace}/{pod}/{container}", withTarget(handler))
		mux.HandleFunc(path+"/{namespace}/{pod}/{uid}/{container}", withTarget(handler))
	}
	mux.HandleFunc("/portForward/{namespace}/{pod}", streams.portForward)
	mux.HandleFunc("/portForward/{namespace}/{pod}/{uid}", streams.portForward)
	return mux
}

// onlyFrom refuses all callers except the one with that common name, since commands run as this user.
func onlyFrom(name string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.PeerCertificates[0].Subject.CommonName != name {
			http.Error(w, "only the apiserver may call", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withTarget calls the handler with the container of the path, if its names are safe as file names.
func withTarget(handler func(http.ResponseWriter, *http.Request, target)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t := target{r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")}
		for _, part := range []string{t.namespace, t.pod, t.container} {
			if !isFileName(part) {
				http.Error(w, fmt.Sprintf("%q is not a name", part), http.StatusBadRequest)
				return
			}
		}
		handler(w, r, t)
	}
}

// isFileName reports whether a name of the API is safe as a file name: no separator and no leading dot.
func isFileName(name string) bool {
	return name != "" && len(name) <= 253 && name[0] != '.' && name[0] != '-' &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == ""
}
